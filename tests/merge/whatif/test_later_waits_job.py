"""`distprof whatif --defer-waits` of real jobs that wait long before they use what they wait for."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from support.attempts import most_hold
from support.jobs import SCRIPTS, distprof, record_run

pytestmark = pytest.mark.job


def answer(folder: Path, *options: object) -> dict:
    done = distprof("whatif", "--json", *options, folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def recorded(out: Path, ms: int, *arguments: object, traced: int = 3, execution: int = 1) -> Path:
    plan = f"wait=2,count=0,time=0,execution={execution},trace={traced}"
    record_run(out, 2, SCRIPTS / "early_waits.py", traced + 6, ms, *arguments, flags=("--steps", plan))
    return out


def without_tensors(run: Path) -> None:
    """Takes all tensors out of the execution traces."""
    for file in run.glob("rank*/execution_trace.json.gz"):
        trace = json.loads(gzip.decompress(file.read_bytes()))
        for node in trace["nodes"]:
            for side in ("inputs", "outputs"):
                node[side] = {"values": [], "shapes": [], "types": []}
        file.write_bytes(gzip.compress(json.dumps(trace).encode()))


def test_waits_come_when_what_they_bring_is_used(tmp_path):
    """Rank 1 sleeps in front of an all_reduce, rank 0 behind it; both could do so at once."""
    run = recorded(tmp_path / "run", 200)
    found = answer(run, "--defer-waits")
    mine = [one for one in found["deferred"] if one["until"] == "aten::item" and one["rank"] == 0]
    assert {one["step"] for one in mine} == {step["step"] for step in found["steps"]}
    assert all(one["collective_op"] == "all_reduce" and one["later_ns"] >= 200e6 for one in mine)
    assert found["gain_ns"] >= 150e6 and found["replay_error_ns"] < 1000
    said = distprof("whatif", "--defer-waits", "--scale", "rank=0: 0.5", run)
    assert said.returncode == 0 and "rank 0: all_reduce, 1 per step: until aten::item" in said.stdout


def test_waits_of_every_kind_of_communication_move(tmp_path):
    """Each rank waits for all of it, then rank 0 sleeps, then results are read in the same order."""
    run = recorded(tmp_path / "run", 60, "gather", "scatter", "functional", "message")
    found = answer(run, "--defer-waits")
    for step in found["steps"]:
        mine = {one["collective_op"]: one for one in found["deferred"]
                if one["rank"] == 0 and one["step"] == step["step"]}
        assert {op: one["until"] for op, one in mine.items() if one["later_ns"] >= 60e6} == {
            "all_gather": "aten::sum", "reduce_scatter": "aten::sum", "all_reduce": "aten::item", "recv": "aten::item",
            "send": None}
    without_tensors(run)
    said = distprof("whatif", "--defer-waits", run)
    # five waits of each rank, and one of DistributedDataParallel's
    assert said.returncode == 0 and "none of 12 waits per step can move later" in said.stdout
    assert "is unknown for 12 waits per step: these are unchanged" in said.stdout
    found = answer(run, "--defer-waits")
    assert found["waits_without_known_use"] == 12 * len(found["steps"])


def test_without_an_execution_trace_it_is_one_line(tmp_path):
    done = distprof("whatif", "--defer-waits", recorded(tmp_path / "run", 0, execution=0))
    assert done.returncode == 1 and "no execution traces" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.stress
def test_without_overlap_it_is_the_job_that_waits_at_once(tmp_path):
    def attempt(folder: Path) -> None:
        late, at_once = (recorded(folder / name, 30, *more, traced=12, execution=0)
                         for name, more in (("late", ("late",)), ("at once", ())))
        predicted = answer(late, "--no-overlap")["job"]["predicted_ns"]
        truth = answer(at_once, "--scale", "rank=0: 1")
        print(f"predicted {predicted / 1e6:.2f} ms, real {truth['job']['measured_ns'] / 1e6:.2f} ms")
        assert abs(predicted - truth["job"]["measured_ns"]) <= max(0.05 * predicted, truth["scatter_ns"])

    most_hold(attempt, tmp_path, of=5, at_least=4)


@pytest.mark.stress
def test_it_is_the_job_that_waits_later(tmp_path):
    def attempt(folder: Path) -> None:
        now, then = (recorded(folder / name, 30, *more, traced=12) for name, more in (("now", ()), ("then", ("late",))))
        predicted = answer(now, "--defer-waits")["job"]["predicted_ns"]
        truth = answer(then, "--scale", "rank=0: 1")
        print(f"predicted {predicted / 1e6:.2f} ms, real {truth['job']['measured_ns'] / 1e6:.2f} ms "
              f"+- {truth['scatter_ns'] / 1e6:.2f} ms")
        real = truth["job"]["measured_ns"]
        assert abs(predicted - real) <= max(0.05 * real, truth["scatter_ns"])

    most_hold(attempt, tmp_path, of=10, at_least=8)
