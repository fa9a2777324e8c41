"""Folders of traces that frameworks write, and those that our handlers for them write: they merge as they are."""

from __future__ import annotations

import gzip
import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from distprof.integrations.torchtitan import trace_post_processor
from distprof.merge.run.open_run import open_run
from support.jobs import SCRIPTS, distprof, torchrun

pytestmark = pytest.mark.skipif(not all(map(find_spec, ("accelerate", "torchtitan"))),
                                reason="accelerate or torchtitan is not installed")


def merge(folder: Path, out: Path) -> str:
    done = distprof("merge", folder, "--out", out, "--strict")
    assert done.returncode == 0 and "2 of 2 ranks" in done.stdout, done.stderr
    return done.stdout


@pytest.mark.job
def test_folders_of_accelerate_torchtitan_and_megatron(tmp_path):
    traces = tmp_path / "traces"
    torchrun(2, SCRIPTS / "trace_folders.py", traces)
    for name in ("accelerate", "handler", "scheduled/iteration_6", "torchtitan/profile_traces/iteration_6"):
        merge(traces / name, tmp_path / name.replace("/", "-"))
    for path in (traces / "accelerate").iterdir():  # as where a trace does not name its rank
        path.write_text(path.read_text().replace('"distributedInfo"', '"elsewhere"'))
    assert {rank.number: rank.trace.name for rank in open_run(traces / "accelerate").ranks} == {
        0: "profile_0.json", 1: "profile_1.json"}
    refused = distprof("merge", traces / "scheduled", "--out", tmp_path / "refused")
    assert refused.returncode == 1 and "in 2 iterations" in refused.stderr

    titan = open_run(traces / "torchtitan" / "profile_traces" / "iteration_3")
    assert (titan.mp_size, titan.dp_size, titan.topology_source) == (2, 1, "torchtitan ParallelDims")
    assert [rank.place for rank in titan.ranks] == [f"tp{rank} cp0 dp0 pp0" for rank in range(2)]

    said = merge(traces / "megatron", tmp_path / "megatron")
    assert "note: there are execution traces of ranks 0 and 1 next to the timelines (chakra/rank-0.json.gz" in said
    (traces / "megatron" / "chakra" / "rank-1.json.gz").unlink()
    assert "of rank 0 next to the timelines (chakra/rank-0.json.gz), none of rank 1" in merge(
        traces / "megatron", tmp_path / "one")


@pytest.mark.parametrize("name", ["rank0_trace.json", "rank0_trace.json.gz"])
def test_a_trace_stays_whole_where_nothing_says_a_mesh_or_it_is_none(tmp_path, name, monkeypatch):
    monkeypatch.setattr("distprof.integrations.torchtitan._topology", lambda: {"topology": {"tp": 2}})
    opened = gzip.open if name.endswith(".gz") else open
    for content, expected in ((b'\n{"traceEvents": []}', {"distprof": {"topology": {"tp": 2}}, "traceEvents": []}),
                              (b"{ \n}\n", {"distprof": {"topology": {"tp": 2}}}),
                              (b"{}", {"distprof": {"topology": {"tp": 2}}}), (b"[1]", [1])):
        with opened(tmp_path / name, "wb") as file:
            file.write(content)
        trace_post_processor(str(tmp_path / name))
        with opened(tmp_path / name, "rb") as file:
            assert json.loads(file.read()) == expected
    trace_post_processor(str(tmp_path / "missing.json"))
    assert [path.name for path in tmp_path.iterdir()] == [name]
