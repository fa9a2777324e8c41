"""Steps of real jobs: all ranks find the same ones, each is an iteration by the script's own watch, and what is counted
in it is what torch's own counter says."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from distprof.contract.tables import COLLECTIVES, STEPS
from distprof.merge.blame.analysis import analyse
from distprof.merge.cost.measured_run import measured_run
from distprof.merge.run.open_run import open_run
from distprof.merge.run.tables import read_table
from support.jobs import SCRIPTS, distprof, record_run, torchrun

pytestmark = pytest.mark.job

LOOPS = SCRIPTS / "loops.py"
SHORT = ("--steps", "wait=2,count=1,time=2,trace=2,arrivals=3")
NUM_STEPS = 10


def watched(folder: Path, rank: int) -> list[list[int]]:
    """Begin and end of each iteration, and its FLOPs: forward, backward, evaluation."""
    return json.loads((folder / f"loop{rank}.json").read_text())


def iteration_of(step: dict, rule: str, iterations: list[list[int]]) -> int:
    """The iteration in which a step ended, or in which it began where the next forward call ends it."""
    at = step["start_ns" if rule == "backward" else "end_ns"]
    return sum(began <= at for began, *_ in iterations) - 1


def recorded(folder: Path, kind: str, iterations: int, *flags: object) -> list[dict]:
    """Runs a loop with us and without; checks steps and FLOPs of both ranks, and gives what they found."""
    record_run(folder / "run", 2, LOOPS, kind, iterations, flags=(*SHORT, *flags), WATCH=str(folder))
    spans = [watched(folder, rank) for rank in (0, 1)]
    torchrun(2, LOOPS, kind, iterations, WATCH=str(folder), COUNT="1")
    found = []
    for rank in (0, 1):
        path = folder / "run" / f"rank{rank:05d}"
        info = json.loads((path / "rank.json").read_text())
        assert (info["status"], info["num_steps"], info["notes"]) == ("complete", NUM_STEPS, [])
        steps = pl.read_parquet(path / STEPS.file)
        where = [iteration_of(step, info["steps_found"]["rule"], spans[rank]) for step in steps.to_dicts()]
        assert where[1:] == list(range(where[1], where[1] + NUM_STEPS - 1)), "a step an iteration"
        counted = watched(folder, rank)[where[steps["pass"].to_list().index("count")]]
        ops = pl.read_parquet(path / "ops.parquet")
        flops = [int(ops.filter(pl.col("phase") == phase)["flops"].sum()) for phase in (
            "forward", "backward", "evaluation")]
        # what comes behind the optimizer is of the next step
        assert flops[:2] == counted[2:4] and (kind == "validation" or flops == counted[2:])
        found.append(info["steps_found"])
    return found


def test_five_critic_steps_and_one_of_the_generator(tmp_path):
    first, second = recorded(tmp_path, "gan", 12)
    assert first == second and first["looked_at"] == 12
    done = distprof("stats", tmp_path / "run", "--strict")
    assert done.returncode == 0, done.stderr
    assert "step = 1 iteration: 5 x Critic's SGD, 1 x Generator's SGD" in done.stdout
    assert "evaluation" not in done.stdout, "what the generator makes for the critic is part of every step"
    summary = json.loads(distprof("stats", "--json", tmp_path / "run").stdout)
    # 11 calls of the critic; 6 of the generator, 5 of them without gradient
    assert summary["model"]["fwd_flops"] == 17 * 12288 and summary["evaluation"] is None
    assert [one["steps"] for one in summary["step"]["found"]["optimizers"]] == [5, 1]


@pytest.mark.stress
def test_validation_on_one_rank_alone_changes_no_step(tmp_path):
    first, second = recorded(tmp_path, "validation", 12)
    assert first == second and first["rule"] == "optimizer"
    summary = json.loads(distprof("stats", "--json", tmp_path / "run").stdout)
    assert summary["per_gpu"]["fwd_flops"]["min"] == summary["per_gpu"]["fwd_flops"]["max"] == 12288


@pytest.mark.stress
@pytest.mark.parametrize(("kind", "iterations", "rule"), [
    ("alternating", 12, "pattern"), ("together", 12, "pattern"), ("scaler", 12, "optimizer"),
    ("in_backward", 12, "backward"), ("average", 12, "optimizer"), ("twice", 12, "optimizer"),
    ("unused", 24, "optimizer"), ("closure", 12, "optimizer"), ("rollouts", 12, "optimizer")])
def test_other_loops(tmp_path, kind, iterations, rule):
    first, second = recorded(tmp_path, kind, iterations)
    assert first == second and first["rule"] == rule
    problems = json.loads(distprof("stats", "--json", tmp_path / "run").stdout)["problems"]
    assert any(problem["code"] == "steps_unsure" for problem in problems) == (kind == "unused")


@pytest.mark.stress
def test_the_user_says_how_many_optimizer_steps_make_one(tmp_path):
    first, second = recorded(tmp_path, "gan", 12, "--step-every", 6)
    assert first == second and (first["rule"], first["given"], first["looked_at"]) == ("given", "6", 0)
    assert "step = every 6 optimizer steps, as given" in distprof("stats", tmp_path / "run").stdout


def test_a_late_rank_is_named_where_a_closure_runs_forward_and_backward(tmp_path):
    """As in plain DDP: the module that sleeps, in the forward call that LBFGS calls three times a step."""
    record_run(tmp_path / "run", 2, LOOPS, "lbfgs", 34, 60,
               flags=("--steps", "wait=2,count=0,time=1,trace=9,arrivals=20"))
    found = measured_run(open_run(tmp_path / "run"))
    steps = read_table(found.run, STEPS)
    first = analyse(found.run, found.clock, found.collectives, steps.rows).culprits[0]
    assert (first.rank, first.certain) == (1, True)
    assert (first.causes[0].kind, first.causes[0].where) == ("forward", "")
    calls = pl.read_parquet(tmp_path / "run" / "rank00000" / COLLECTIVES.file)
    assert set(calls.filter(pl.col("op") == "all_reduce")["phase"]) == {"backward"}
    timed = steps.rows.filter(pl.col("pass") == "time")
    assert (timed["optimizer_ns"] < timed["fwd_ns"] + timed["bwd_ns"]).all(), "the closure is no part of the optimizer"
