"""The answer in ten lines: what stands in it, whatever is known; numbers are those of `stats` and `comms`."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from distprof.contract.merged import MfuBasis
from distprof.contract.problems import FilesMissing, NoteOfRank
from distprof.merge.text.answer import answer
from distprof.merge.text.phrases import brief
from support.jobs import distprof

CAUSES = [{"kind": kind, "where": "layers.1", "gain_ns": 5e6, "spent": 7e6, "of_peers": 2e6}
          for kind in ("forward", "backward", "data")]
STEP = {"time_ns": 50e6, "low_ns": 48.1e6, "high_ns": 55e6, "num_steps": 22, "passes": ["time"],
        "samples_per_second": 80.0, "flops_per_second": 4e9, "found": None, "mfu": None,
        "mfu_basis": msgspec.to_builtins(MfuBasis(code="no_peak", rank=0, device="a CPU", dtype="float32"))}


def late(rank: int) -> dict[str, Any]:
    return {"rank": rank, "step_ns": 50e6, "gain_ns": 10e6, "gain_error_ns": 1e6, "last_gain_ns": 10e6, "p_value": 1e-3,
            "num_peers": 3,
            "late_steps": [7, 8, 9], "excess_ns": [1e7] * 3, "delayed": [0, 1, 2, 3], "causes": CAUSES, "share": 0.2,
            "certain": True}


def summary(**changed: Any) -> dict[str, Any]:
    communication = {"steps": [7, 8, 9], "pipeline": None, "waiting_ratio": 0.2, "moving_ratio": 0.05, "culprits": [],
                     "blind": None}
    return {"world_size": 4, "ranks": [0, 1, 2, 3], "missing_ranks": [], "topology": {"dp": 2, "tp": 2}, "step": STEP,
            "problems": [], "remarks": [], "uncounted_ops": [],
            "steps": {"num_recorded": 32, "num_run": 320, "change": None},
            "communication": communication | changed.pop("communication", {})} | changed


def test_what_a_good_job_gives():
    assert answer(summary()) == [
        "4 ranks = dp 2 x tp 2: step 50.0 ms (48.1 to 55.0), 80 samples/s, 4.00 GFLOP/s (1.00 GFLOP/s per GPU)",
        "MFU unknown: no published float32 peak for a CPU; pass one in FLOP/s with --peak "
        "(`distprof doctor --peak` measures it)",
        "exposed communication: 20.0 % of a step waiting for other ranks, 5.0 % moving data",
        "No straggler: no rank delays the others",
        "all 4 ranks complete; steps 0-31 of 320 recorded"]


def test_where_something_is_not_counted_rates_are_at_least_what_is_shown():
    basis = msgspec.to_builtins(MfuBasis(code="given", rank=0, device="a CPU", dtype="float32"))
    unknown = {"uncounted_ops": [{"op": "mylib::op", "calls": 1.0, "io_bytes": 8.0}],
               "step": STEP | {"mfu": 0.25, "mfu_basis": basis}}
    head, rate, *_ = answer(summary(**unknown))
    assert "at least 4.00 GFLOP/s (1.00 GFLOP/s per GPU)" in head and rate.startswith("MFU at least 25.0 %")
    head, rate, *_ = answer(summary(**unknown | {"uncounted_ops": []}))
    assert "at least" not in head + rate


@pytest.mark.parametrize(("changed", "line"), [
    ({"step": STEP | {"time_ns": None}},
     "4 ranks = dp 2 x tp 2: step time unknown: no step was timed"),
    ({"communication": {"waiting_ratio": None}}, "exposed communication unknown: no rank has steps and a timeline"),
    ({"communication": {"blind": "no wait"}},
     "no rank is known to have waited for a collective: whether a rank delays others is unknown"),
])
def test_what_is_unknown_is_said_with_its_reason(changed, line):
    assert line in answer(summary(**changed))


@pytest.mark.parametrize("passes", [["wait"], ["wait", "time"]])
def test_without_passes_nothing_is_said_to_be_unknown(passes):
    """As with `--passes off`."""
    watched = {"num_steps": 500, "first_watched": 1, "elapsed_ns": 10**10, "step_ns": 2e7, "findings": []}
    found = answer(summary(passes=[{"pass": name} for name in passes],
                           steps={"num_recorded": 1, "num_run": 500, "change": None, "watched": watched}))
    assert any("499 steps watched" in line for line in found)
    if passes == ["wait"]:
        assert found[0] == "4 ranks = dp 2 x tp 2: no passes were recorded, the job was only watched"
        assert found[-1] == "all 4 ranks complete" and len(found) == 3
    else:
        assert "step 50.0 ms" in found[0] and found[-1] == "all 4 ranks complete; step 0 of 500 recorded"


@pytest.mark.parametrize(("ranks", "line"), [
    (1, "exposed communication: none, there is one rank"),
    (4, "exposed communication unknown: distprof comms says why")])
def test_without_collectives(ranks, line):
    assert line in answer(summary() | {"communication": None, "world_size": ranks})


def test_gains_are_parts_of_the_step_time():
    found = {"culprits": [late(2) | {"step_ns": 100e6, "gain_ns": 20e6, "gain_error_ns": 2e6}]}
    lines = answer(summary(communication=found))
    assert "step 50.0 ms (48.1 to 55.0)" in lines[0] and not any("time pass" in line for line in lines)
    assert any(line.startswith("Rank 2 delays every step by 10.0 ms (20.0 %)") for line in lines)
    assert "  Fixing it would cut the step from 50.0 to 40.0 ms (± 1.0 ms)." in lines


def test_what_a_second_fix_gains_is_a_part_of_what_the_first_leaves():
    found = {"culprits": [late(2) | {"step_ns": 100e6, "gain_ns": 20e6, "gain_error_ns": 2e6},
                          late(3) | {"step_ns": 80e6, "gain_ns": 20e6, "gain_error_ns": 2e6, "share": 0.25}]}
    assert "  Fixing it as well would cut the step from 40.0 to 30.0 ms (± 1.0 ms)." in answer(
        summary(communication=found))


def test_a_rank_that_is_late_now_and_then_keeps_the_time_of_its_late_steps():
    """Steps of two kinds: the median is that of one of them, of which the mean delay is no part."""
    found = {"culprits": [late(2) | {"step_ns": 30e6, "gain_ns": 10e6, "late_steps": [7, 8, 11],
                                     "excess_ns": [2e7, 2e7, 0, 0, 2e7, 0],
                                     "share": 1 / 3}]}
    lines = answer(summary(communication=found))
    assert any(line.startswith("Rank 2 delays 3 of 6 steps by 20.0 ms (10.0 ms per step, 33.3 %)") for line in lines)
    assert "  Fixing it would save 10.0 ms per step on average (± 1.0 ms)." in lines


def test_where_the_profiler_was_on_in_all_steps_that_is_said():
    assert "step 50.0 ms (48.1 to 55.0) with the profiler on" in answer(summary(step=STEP | {"passes": ["trace"]}))[0]


def test_ten_lines_are_enough_for_several_late_ranks_and_many_problems():
    problems = [NoteOfRank(rank=rank, detail="something") for rank in range(4)] + [FilesMissing(rank=1, files=("a",))]
    stages = [{"stage": stage, "work_ns": 1e6 * (1 + stage)} for stage in range(2)]
    found = {"culprits": [late(2), late(3), late(1)],
             "pipeline": {"bubble_ratio": 0.25, "imbalance_ratio": 1.5, "stages": stages}}
    lines = answer(summary(communication=found, problems=msgspec.to_builtins(problems)))
    assert len(lines) <= 10
    assert [line.split(":")[0] for line in lines[3:7]] == [
        "pipeline of 2 stages",
        "Rank 2 delays every step by 10.0 ms (20.0 %)",
        "  Fixing it would cut the step from 50.0 to 40.0 ms (± 1.0 ms).",
        "Rank 3 delays every step by 10.0 ms (20.0 %)"]
    assert lines[7:] == ["  distprof comms says more about it", "incomplete: rank 0: something",
                         "incomplete: 4 more; see distprof stats"]


@pytest.mark.job
def test_its_numbers_are_those_of_stats_and_comms(ddp):
    lines = distprof("merge", "--force", "--answer", ddp).stdout.splitlines()
    assert 4 < len(lines) <= 10
    stats, comms = distprof("stats", ddp).stdout, distprof("comms", ddp).stdout
    head, rates = lines[0].split(": ", 1)
    assert head in stats and head in comms
    assert rates.split(", ") == next(line for line in stats.splitlines() if line.startswith("step ") and "/s" in line
                                     ).split("   ")
    assert lines[1].startswith("MFU ") and all(line in stats for line in lines[1:3])
    assert lines[3] in stats and lines[3] in comms
    found = json.loads(distprof("stats", "--json", ddp).stdout)
    assert f"step {brief(found['step']['time_ns'])}" in lines[0]
    assert f"{100 * found['communication']['waiting_ratio']:.1f} % of a step waiting" in lines[2]
    split = json.loads(distprof("comms", "--json", ddp).stdout)
    assert {one["rank"] for one in split["culprits"]} == {one["rank"] for one in found["communication"]["culprits"]}
    assert lines[-1] == "all 4 ranks complete; steps 0-7 of 9 recorded" and not found["problems"]


def test_traces_of_others_have_no_answer(tmp_path):
    for rank in range(2):
        (tmp_path / f"rank{rank}.json").write_text(json.dumps({"traceEvents": []}))
    done = distprof("merge", "--answer", tmp_path)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1 and "--answer" in done.stderr, done
