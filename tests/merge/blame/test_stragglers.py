"""Ranks that are late for a known reason, on real jobs: named, with cause and cost, and nobody where nobody is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from distprof.contract.tables import STEPS
from distprof.merge.blame.analysis import Analysis, analyse
from distprof.merge.blame.culprits import Culprit
from distprof.merge.cost.measured_run import measured_run
from distprof.merge.run.open_run import open_run
from distprof.merge.run.tables import read_table
from support.attempts import most_hold
from support.jobs import SCRIPTS, record_run

pytestmark = pytest.mark.job

PLAN = "wait=2,count=0,time=0,trace=9"


def analysed(out: Path, causes: str, *, milliseconds: int = 20) -> Analysis:
    record_run(out, 4, SCRIPTS / "stragglers.py", causes, milliseconds, 12, flags=("--steps", PLAN),
               ARRIVALS=str(out.parent))
    return analysis_of(out)


def analysis_of(out: Path) -> Analysis:
    found = measured_run(open_run(out))
    rows, steps = found.collectives, read_table(found.run, STEPS)
    assert not found.run.problems and not steps.problems
    assert rows["complete"].all() and set(rows["matched_by"]) <= {"sequence"}
    return analyse(found.run, found.clock, rows, steps.rows)


def check_breakdown(found: Analysis) -> None:
    """Parts of a step are measured apart from it, and add up to it."""
    parts = found.breakdown.select("compute_ns", "waiting_ns", "moving_ns", "data_ns", "optimizer_ns", "host_ns")
    assert (parts >= 0).to_numpy().all()
    assert len(found.breakdown) == 4 * 8, "the first traced step is left out"
    assert parts.sum_horizontal().to_list() == pytest.approx(found.breakdown["duration_ns"].to_list(), rel=0.01)


@pytest.mark.stress
@pytest.mark.parametrize(("causes", "rank", "kind", "where"), [
    ("module", 2, "forward", "layers.1.mlp"),
    ("loader", 1, "data", None),
    ("backward", 2, "backward", "layers.1.mlp"),
    ("host", 2, "host", "between forward and backward"),
    ("optimizer", 1, "optimizer", None),
])
def test_the_late_rank_and_its_cause(tmp_path, causes, rank, kind, where):
    found = analysed(tmp_path / "run", causes, milliseconds=200)
    check_breakdown(found)
    first = found.culprits[0]
    assert (first.rank, first.certain, first.delayed) == (rank, True, [0, 1, 2, 3])
    cause = first.causes[0]
    assert (cause.kind, cause.where) == (kind, where)


def named(found: Analysis) -> dict[int, Culprit]:
    """Those that are certain and cost more than a tenth of a step, alone or once the others are fixed; by rank."""
    return {one.rank: one for one in found.culprits
            if one.certain and max(one.gain_ns, one.last_gain_ns) > 0.1 * one.step_ns}


def test_two_causes_in_different_groups(two_late_ranks):
    late = named(analysis_of(two_late_ranks))
    assert {1, 2} <= set(late)
    assert (late[1].causes[0].where, late[2].causes[0].kind) == ("layers.1.mlp", "data")


# --- by the clock: `make stress` ------------------------------------------------------------------------------------


def came_at(folder: Path, rank: int, steps: list[int]) -> Any:
    """When a rank came to its collectives, by the script's own watch: (steps, collectives of a step)."""
    return np.array(json.loads((folder / f"arrivals{rank}.json").read_text())).reshape(12, -1)[steps]


def apart(folder: Path, late: int, early: int, steps: list[int]) -> float:
    """By how much one rank came later than the other a step, by the script's own watch."""
    after, before = (came_at(folder, rank, steps) for rank in (late, early))
    return float(np.maximum(after - before, 0).sum(axis=1).mean())


def watched(folder: Path, late: int, steps: list[int]) -> tuple[float, float]:
    """By how much steps with a delay took longer on the other ranks than those between, by the script's own watch.

    Returns:
        That, in ns, and the scatter of these steps as a standard deviation. A delay behind the last collective of a
        step makes the next one longer.
    """
    others = [rank for rank in range(4) if rank != late]
    took = np.mean([json.loads((folder / f"steps{rank}.json").read_text()) for rank in others], axis=0)
    odd, even = ([took[step] for step in steps if step % 2 == rest] for rest in (1, 0))
    return float(abs(np.mean(odd) - np.mean(even))), float(max(np.std(odd, ddof=1), np.std(even, ddof=1)))


@pytest.mark.stress
@pytest.mark.parametrize(("causes", "rank"), [
    ("module", 2), ("backward", 2), ("loader", 1), ("host", 2), ("optimizer", 1), ("batch", 3)])
def test_the_gain_is_what_the_steps_between_the_delays_show(tmp_path, causes, rank):
    """4 ranks share 2 cores: steps between the delays are longer than they would be with a core for each rank."""
    def attempt(folder: Path) -> None:
        record_run(folder / "run", 4, SCRIPTS / "stragglers.py", causes, 40, 45, 2, ARRIVALS=str(folder))
        first, *others = analysis_of(folder / "run").culprits
        assert first.rank == rank and first.certain and not any(one.certain for one in others if one.share > 0.1)
        slower_ns, scatter_ns = watched(folder, rank, counted_steps(folder / "run"))
        print(f"{causes}: gain {2 * first.gain_ns:.4g} ns, watch {slower_ns:.4g} +- {scatter_ns:.2g}")
        assert abs(2 * first.gain_ns - slower_ns) <= 2 * (first.gain_error_ns or 0) + scatter_ns, "by what is stated"
        assert 2 * first.gain_ns == pytest.approx(slower_ns, rel=0.1, abs=scatter_ns)

    most_hold(attempt, tmp_path, of=5, at_least=3)


def counted_steps(out: Path) -> list[int]:
    """Those from which gains follow, but for the last of each pass: the script's watch sees the pass being written."""
    steps = pl.read_parquet(out / "rank00000" / STEPS.file).filter(pl.col("pass").is_in(["trace", "arrivals"]))
    number = pl.col("step")
    return steps.filter(number > number.min().over("pass"), number < number.max().over("pass"))["step"].to_list()


@pytest.mark.stress
def test_the_cost_of_two_causes_is_what_the_script_itself_measured(tmp_path):
    """With 4 ranks on 2 cores a pair is not apart by what one sleeps."""
    def attempt(folder: Path) -> None:
        found = analysed(folder / "run", "mesh,module,loader", milliseconds=60)
        late = named(found)
        assert set(late) == {1, 2}
        for rank, early in ((1, 0), (2, 3)):
            cause = late[rank].causes[0]
            assert cause.spent - cause.of_peers == pytest.approx(apart(folder, rank, early, found.steps), rel=0.1)

    most_hold(attempt, tmp_path, of=5, at_least=4)


@pytest.mark.stress
def test_twice_the_batch_makes_others_wait_as_long_as_the_script_itself_measured(tmp_path):
    def attempt(folder: Path) -> None:
        found = analysed(folder / "run", "batch")
        first = found.culprits[0]
        assert first.rank == 3 and first.certain and first.causes[0].kind == "batch"
        assert first.causes[0].ratio == 2
        # all waiting until the last rank had its gradients
        came = np.stack([came_at(folder, rank, found.steps).sum(axis=1) for rank in range(4)])
        waited = found.breakdown.group_by("rank").agg(pl.col("waiting_ns").mean()).sort("rank")["waiting_ns"].sum()
        assert waited == pytest.approx(float((came.max(axis=0) - came).mean(axis=1).sum()), rel=0.15)

    most_hold(attempt, tmp_path, of=5, at_least=3)


@pytest.mark.stress
def test_a_balanced_job_has_no_culprit(tmp_path):
    def attempt(folder: Path) -> None:
        found = analysed(folder / "run", "none")
        check_breakdown(found)
        assert [one for one in found.culprits if one.certain] == []

    most_hold(attempt, tmp_path, of=20, at_least=19)


def on_free_processors(number: int) -> pytest.MarkDecorator:
    """Where all ranks lack processors, none is named for lacking one more than the others."""
    free = (os.cpu_count() or 1) - os.getloadavg()[0]
    return pytest.mark.skipif(free < number / 2, reason=f"{number} processors have to be idle, or nearly so")


def judged(out: Path, *arguments: object) -> Analysis:
    """A job of `late_ranks.py` under the plan that users get.

    Where ranks share processors anyway, none is named for lacking one: `pinned` has two ranks.
    """
    record_run(out, 2 if arguments[0] == "pinned" else 4, SCRIPTS / "late_ranks.py", *arguments)
    found = measured_run(open_run(out))
    return analyse(found.run, found.clock, found.collectives, read_table(found.run, STEPS).rows)


@pytest.mark.stress
@pytest.mark.parametrize(("job", "rank", "kind", "where"), [
    ("tp", 1, "forward", "blocks.1"), ("fsdp", 2, "backward", "blocks.1"), ("tp_fsdp", 1, "forward", "blocks.1"),
    ("lbfgs", 2, "forward", "blocks.1"), ("broadcast", 0, "host", None), ("reduce", 0, "host", None),
    ("sequences", 3, "elements", None), ("burn", 2, "host", None),
    pytest.param("pinned", 1, "core", None, marks=on_free_processors(2)),
    ("workers", 1, "data", None)])
def test_the_late_rank_under_any_parallelism(tmp_path, job, rank, kind, where):
    milliseconds = 150 if job == "workers" else 20  # a worker prefetches while its rank computes

    def attempt(folder: Path) -> None:
        certain = [one for one in judged(folder / "run", job, milliseconds, 45).culprits if one.certain]
        assert [one.rank for one in certain] == [rank]
        cause = certain[0].causes[0]
        assert kind in (None, cause.kind) and where in (None, cause.where)

    most_hold(attempt, tmp_path, of=5, at_least=4)


@pytest.mark.stress
@pytest.mark.parametrize(("job", "every", "rank"), [("checkpoint", 4, 0), ("checkpoint", 3, 0), ("lbfgs", 3, 2),
                                                    ("fsdp", 4, 2)])
def test_a_rank_that_is_late_now_and_then(tmp_path, job, every, rank):
    def attempt(folder: Path) -> None:
        first = judged(folder / "run", job, 60, 45, every).culprits[0]
        assert (first.rank, first.certain) == (rank, True)
        assert len(first.late_steps) <= 24 // every + 2

    most_hold(attempt, tmp_path, of=3, at_least=2)


BALANCED = ("tp", "fsdp", "tp_fsdp", "lbfgs", "broadcast", "reduce", "none")


@pytest.mark.stress
def test_balanced_jobs_of_seven_kinds_have_no_culprit(tmp_path):
    def attempt(folder: Path) -> None:
        job = BALANCED[int(folder.name.removeprefix("attempt")) % len(BALANCED)]
        assert not any(one.certain for one in judged(folder / "run", job, 0, 45).culprits)

    most_hold(attempt, tmp_path, of=25, at_least=24)


@contextmanager
def busy(number: int) -> Iterator[None]:
    """Other programs that want a processor."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for one in others:
            one.kill()
            one.wait()


@pytest.mark.stress
@pytest.mark.parametrize(("number", "of", "at_least"), [(3, 20, 19)])
def test_balanced_jobs_beside_busy_programs_have_no_culprit(tmp_path, number, of, at_least):
    def attempt(folder: Path) -> None:
        with busy(number):
            assert not any(one.certain for one in judged(folder / "run", "none", 0, 45).culprits)

    most_hold(attempt, tmp_path, of=of, at_least=at_least)


@pytest.mark.stress
@pytest.mark.parametrize(("job", "milliseconds", "rank", "kind"), [
    ("tp", 150, 1, "forward"), pytest.param("pinned", 0, 1, "core", marks=on_free_processors(4))])
def test_the_late_rank_beside_busy_programs(tmp_path, job, milliseconds, rank, kind):
    def attempt(folder: Path) -> None:
        with busy(2):
            certain = [one for one in judged(folder / "run", job, milliseconds, 45).culprits if one.certain]
        assert [(one.rank, one.causes[0].kind) for one in certain] == [(rank, kind)]

    most_hold(attempt, tmp_path, of=5, at_least=3)
