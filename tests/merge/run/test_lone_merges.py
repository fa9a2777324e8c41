"""A merge without its run: read as it was written, and refused in one line if it is damaged or of another version."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from distprof.contract.paths import SUMMARY_JSON
from support.jobs import called
from support.rank_traces import slice_of, write_run


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The merge of a job that wrote into two directories, one of them with a name that is not UTF-8."""
    folder = tmp_path_factory.mktemp("lone")
    run = write_run(folder / "run", *([slice_of("aten::mm", 10, 5, cat="cpu_op")] for _ in range(2)))
    other = Path(os.fsdecode(os.fsencode(folder) + b"/other\x80"))
    other.mkdir()
    (run / "rank00001").rename(other / "rank00001")
    assert called("merge", run, other, "--out", folder / "merged").returncode == 0
    return folder / "merged"


@pytest.fixture
def alone(merged: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(merged, tmp_path / "alone"))


def refused(alone: Path) -> str:
    done = called("comms", alone)
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr


def test_names_of_its_runs_need_not_be_utf_8(alone):
    assert "\\udc80" in (alone / SUMMARY_JSON).read_text()
    for command in ("comms", "stats"):
        assert json.loads(called(command, "--json", alone).stdout)["ranks"] == [0, 1]


@pytest.mark.parametrize("content", [
    b"", b"{", b'{"clock": "\xff"}', b"[]", b'"text"', b"[" * 100_000, b'{"clock": 1, "step": {}}'])
def test_a_damaged_summary_is_one_line(alone, content):
    (alone / SUMMARY_JSON).write_bytes(content)
    said = refused(alone)
    assert f"{alone / SUMMARY_JSON}" in said and "hint: merge again" in said and len(said.splitlines()) == 1


def test_a_summary_that_cannot_be_read_is_no_merge_that_may_be_replaced(alone, merged):
    (alone / SUMMARY_JSON).write_text("[" * 100_000)
    done = called("merge", merged.parent / "run", "--out", alone, "--force")
    assert done.returncode == 1 and "has other files: --out must be new, empty or an earlier merge" in done.stderr


@pytest.mark.parametrize("key", ["clock", "step", "kind", "communication"])
def test_a_summary_of_another_version_is_one_line(alone, key):
    summary = json.loads((alone / SUMMARY_JSON).read_text())
    del summary[key]
    (alone / SUMMARY_JSON).write_text(json.dumps(summary))
    assert "was written by another version of distprof" in refused(alone)


@pytest.mark.parametrize("key", ["problems", "remarks"])
def test_what_only_another_version_knows_is_one_line(alone, key):
    summary: dict[str, Any] = json.loads((alone / SUMMARY_JSON).read_text())
    summary[key] = [{"code": "of_tomorrow"}]
    (alone / SUMMARY_JSON).write_text(json.dumps(summary))
    assert "hint: merge again" in refused(alone)
    assert "hint: merge again" in called("stats", alone).stderr
