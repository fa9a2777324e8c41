"""Paths near a run: each is refused with the command that was meant, and that command works."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from distprof.launch.what_next import what_next
from support.jobs import called
from support.rank_traces import slice_of, write_run


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `runs/` and two merged runs in it."""
    folder = tmp_path_factory.mktemp("made")
    for began, name in enumerate(("older run", "newer")):
        run = write_run(folder / "runs" / name, [slice_of("a", 0, 1)], [slice_of("b", 0, 1)])
        (run / "run.json").write_text(f'{{"format": 1, "run_id": "made", "world_size": 2, "start_ns": {began}}}')
    assert called("merge", folder / "runs" / "newer").returncode == 0
    return folder


@pytest.fixture(autouse=True)
def here(made, monkeypatch):
    monkeypatch.chdir(made)


def hint_of(*arguments: str) -> list[str]:
    """Words of the command that is hinted at."""
    done = called(*arguments)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1 and "Traceback" not in done.stderr, done.stderr
    return shlex.split(done.stderr.split("hint: ")[1])


@pytest.mark.parametrize(("path", "run"), [
    (".", "runs/newer"), ("runs/newer/rank00000", "runs/newer"), ("runs/newer/merged/trace.json.gz", "runs/newer"),
    ("runs/older run/rank00001", "runs/older run")])
@pytest.mark.parametrize("command", ["stats", "ops"])
def test_the_command_that_was_meant_is_hinted_at_and_works(path, run, command):
    hint = hint_of(command, path)
    assert hint == ["distprof", command, run]
    assert called(*hint[1:]).returncode == 0


@pytest.mark.parametrize("command", ["merge", "report", "comms", "critical-path", "whatif", "memory", "waits", "export",
                                     "diff"])
def test_every_command_says_so(command, tmp_path):
    more = {"export": ("--out", tmp_path / "out"), "diff": ("runs/newer",)}.get(command, ())
    assert hint_of(command, *more, "runs/newer/rank00000")[:2] == ["distprof", command]


def test_from_inside_of_a_rank(made, monkeypatch):
    monkeypatch.chdir(made / "runs" / "newer" / "rank00000")
    assert hint_of("stats", ".") == ["distprof", "stats", str(made / "runs" / "newer")]


@pytest.mark.parametrize("inside", ["merged", "rank00000"])
def test_distprof_alone_inside_of_a_run(made, monkeypatch, inside):
    monkeypatch.chdir(made / "runs" / "newer" / inside)
    assert what_next(Path())[0].startswith("distprof report ..    ")
    assert called("stats", "..").returncode == 0


def test_a_folder_with_traces_of_its_own_is_read(made, tmp_path):
    folder = tmp_path / "traces"
    folder.mkdir()
    (folder / "runs").symlink_to(made / "runs")
    for rank in range(2):
        shutil.copy(made / "runs" / "newer" / f"rank0000{rank}" / "trace.json.gz", folder / f"rank{rank}.json.gz")
    assert called("ops", folder).returncode == 0


@pytest.mark.parametrize(("flags", "words"), [
    (("--json", "--markdown"), "--json and --markdown cannot be combined"),
    (("--out", "-"), "--out must be a file")])
def test_forms_of_a_report_that_exclude_each_other(flags, words):
    done = called("report", *flags, "runs/newer")
    assert done.returncode == 2 and words in done.stderr and "hint: " in done.stderr
