"""`distprof export --format replay`: what comm_replay needs is there, and what cannot be issued anew is said."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from support.comm_replay_rules import assert_that_they_meet, calls_of
from support.execution_traces import gloo_job
from support.jobs import SCRIPTS, called, distprof
from support.kineto_files import DLRM, needs_shared


def exported(source, folder, ranks):
    done = called("export", source, "--out", folder, "--format", "replay")
    assert done.returncode == 0, done.stderr
    found = {rank: calls_of(folder / f"rank-{rank}.json", rank) for rank in range(ranks)}
    assert_that_they_meet(found)
    return found, done.stdout


def test_calls_of_traces_of_other_programs(tmp_path):
    found, said = exported(gloo_job(tmp_path / "run"), tmp_path / "out", 2)
    assert [[one["op"] for one in found[rank]] for rank in (0, 1)] == [["all_reduce", "send"], ["all_reduce", "recv"]]
    assert (found[0][0]["in"], found[0][0]["out"], found[0][0]["dtype"]) == (25, 25, "float")
    assert found[0][1]["side"] == 1 and found[1][1]["side"] == 0 and "skipped" not in said


def changed(folder, rank, change):
    file = folder / f"rank{rank}.json"
    timeline = json.loads(file.read_text())
    for event in timeline["traceEvents"]:
        change(event)
    file.write_text(json.dumps(timeline))
    return folder


@pytest.mark.parametrize(("change", "said"), [
    (lambda event: event["args"].update({"Input type": ["c10::complex<float>"]}), "a number of elements and a type"),
    (lambda event: event.update(ph="i") if event["name"] == "gloo:all_reduce" else None, "some of their ranks")])
def test_what_one_rank_lacks_is_left_out_on_all_and_said(tmp_path, change, said):
    done = called("export", changed(gloo_job(tmp_path / "run"), 1, change), "--out", tmp_path / "out", "--format",
                  "replay")
    assert done.returncode == 0 and f"skipped on all their ranks, for lack of {said}" in done.stdout, done.stdout
    for rank in (0, 1):
        assert "all_reduce" not in {one["op"] for one in calls_of(tmp_path / "out" / f"rank-{rank}.json", rank)}


@pytest.mark.job
def test_calls_of_a_job_with_rare_kinds(tmp_path):
    done = distprof("run", "--out", tmp_path / "run", "--nproc-per-node", 2, "--steps",
                    "wait=1,count=0,time=0,execution=1,trace=0,arrivals=0", SCRIPTS / "odd_collectives.py")
    assert done.returncode == 0, done.stderr
    found, said = exported(tmp_path / "run", tmp_path / "out", 2)
    ops = Counter(one["op"] for one in found[0])
    assert {"all_to_allv", "all_reduce", "scatter", "gather", "reduce_scatter", "barrier", "send", "recv",
            "wait"} <= set(ops) and ops["wait"] >= 12
    (uneven,) = [one for one in found[0] if one["op"] == "all_to_allv" and one["in"] == 20]
    assert (uneven["in_split"], uneven["out_split"]) == ([15, 5], [15, 10]) and "skipped" not in said
    alone = [one for one in found[0] if one["ranks"] == (0,)]
    assert [one["op"] for one in alone] == ["all_reduce", "broadcast"] and all(one["group"] > 0 for one in alone)


@pytest.mark.long
@needs_shared
def test_calls_of_a_real_job_of_nccl_are_those_that_torch_noted(tmp_path):
    found, said = exported(DLRM, tmp_path, 8)
    for rank, calls in found.items():
        (file,) = DLRM.rglob(f"dlrm_eg_{rank}.json*")
        given = [node["inputs"] for node in json.loads(_text(file))["nodes"] if node["name"] == "record_param_comms"]
        noted = [(one[4], one[5], one[6]) for one in given if "wait" not in one]
        assert [one["op"].removesuffix("v") for one in calls] == [
            {"allreduce": "all_reduce"}.get(name, name.removesuffix("v")) for name, _, _ in noted]
        for one, (_, sent, received) in zip(calls, noted, strict=True):
            assert (sent, received) in (([], []), (one["in_split"], one["out_split"]))
    assert "skipped" not in said


def _text(file):
    import gzip

    return gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
