"""How often a delay of 5 % of a step is named, of whom, and how often one is invented: a table of made-up jobs.

`make stress` prints it; DISTPROF_WATCH_JOBS sets how many jobs of each kind there are. docs/watch.md shows a run of it.
"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import pytest

from distprof.contract.watch_state import WatchFinding
from support.watched_jobs.job import MS, Job, Trouble
from support.watched_jobs.judged import BLAMES, Judged, judged, watch_live

JOBS = int(os.environ.get("DISTPROF_WATCH_JOBS", "100"))
STEPS, PLANTED = 13_000, 10_000
"""The trouble begins in one of the first 10,000 steps; 60 s later the job still runs."""
LONGER = {"dp": 1.02, "tp": 1.04, "pp": 1.58}
"""Steps of a layout, in times of the work in them."""
KINDS: dict[str, dict[str, Any]] = {
    "4 ranks, quiet": {"load": 0.003},
    "4 ranks, other load": {"load": 0.02},
    "8 ranks, other load": {"world": 8, "load": 0.02},
    "8 ranks, common lengths": {"world": 8, "load": 0.003, "common_lengths": 0.2},
    "8 ranks, own lengths": {"world": 8, "load": 0.003, "own_lengths": 0.05},
    "8 ranks, tensor parallel": {"world": 8, "layout": "tp", "load": 0.003},
    "4 ranks, pipeline": {"layout": "pp", "load": 0.003},
}
RIGHT, FALSE = 0.99, 1e-5
COSTLY = 0.0125
"""The least part of a step by which a delay must make steps longer to be one that costs something."""
IN_TIME = {"8 ranks, own lengths": 0.75, "8 ranks, other load": 0.85}
"""Where less than 95 % is reached: steps grow by less than the rank is delayed."""


def planted(kind: str, seed: int) -> Judged:
    """A job with a rank, a step and a phase drawn by chance."""
    job, draw = Job(num_steps=STEPS, seed=seed, **KINDS[kind]), np.random.default_rng(seed + 1000)
    rank, onset = int(draw.integers(job.world)), int(draw.integers(PLANTED))
    phase = ("data", "forward", "backward", "optimizer")[int(draw.integers(4))]
    extra = 0.05 * LONGER[job.layout] * job.step_ns
    job.troubles = (Trouble(ranks=(rank,), onset=onset, extra_ns=extra, phase=phase),)
    return judged(watch_live(job), rank, onset)


def invented(kind: str, seed: int) -> int:
    """Of a job without trouble."""
    found = watch_live(Job(num_steps=STEPS, seed=seed, **KINDS[kind])).findings
    return sum(one.kind in (*BLAMES, "regression", "slow_link", "slow_group", "memory_growth") for one in found)


@pytest.mark.stress
@pytest.mark.parametrize("kind", KINDS)
def test_delays_of_a_twentieth_are_named(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    with ProcessPoolExecutor() as pool:
        jobs = list(pool.map(planted, [kind] * JOBS, range(JOBS)))
        false = sum(pool.map(invented, [kind] * JOBS, range(JOBS, 2 * JOBS)))
    costly = [one for one in jobs if one.grew >= COSTLY]
    named = [one for one in costly if one.late_s is not None]
    in_time, right = sum(one.in_time for one in costly), sum(one.rank_right for one in named)
    free = sum(one.late_s is not None for one in jobs if one.grew < COSTLY)
    near = sum(abs(one.onset_error) <= 10 for one in named)
    others = sum(len(one.false) for one in jobs)
    with capsys.disabled():
        print(f"\n| {kind} | {in_time} of {len(costly)} | {free} of {JOBS - len(costly)} | "
              f"{right} of {len(named)} | {near} of {len(named)} | "
              f"{np.median([one.late_s for one in named]):.0f} s | {false + others} in {2 * JOBS * STEPS:,} steps |")
    assert in_time >= IN_TIME.get(kind, 0.95) * len(costly) - 2
    assert right >= RIGHT * len(named) - 2
    assert false <= FALSE * JOBS * STEPS + 2


def come_and_gone(every: int, steps: int, step_ns: float, seed: int) -> tuple[int, float, list[WatchFinding]]:
    """Rank, mean cost per step, and findings, of a job in which a rank is slow in some of the steps.

    Never the first one: what that does in exact rhythm is taken for checkpoints, and told as pauses.
    """
    draw = np.random.default_rng(seed + 1000)
    rank, onset = int(draw.integers(1, 4)), int(draw.integers(700))
    extra = step_ns * (0.5 if every < 50 else 1.0)
    job = Job(num_steps=9_000 if step_ns < 100 * MS else 3_000, step_ns=step_ns, load=0.01, seed=seed, troubles=(
        Trouble(ranks=(rank,), onset=onset, extra_ns=extra, every=every, steps=steps),))
    return rank, extra * steps / every, watch_live(job).findings


@pytest.mark.stress
@pytest.mark.parametrize(("every", "steps"), [(2, 1), (3, 1), (5, 1), (10, 1), (50, 5), (100, 20)])
@pytest.mark.parametrize("step_ns", [20.0 * MS, 150.0 * MS])
def test_what_comes_and_goes_is_named(every: int, steps: int, step_ns: float,
                                      capsys: pytest.CaptureFixture[str]) -> None:
    number = max(JOBS // 5, 5)
    with ProcessPoolExecutor() as pool:
        jobs = list(pool.map(come_and_gone, [every] * number, [steps] * number, [step_ns] * number, range(number)))
    first = [(rank, cost, next((one for one in found if rank in one.ranks), None)) for rank, cost, found in jobs]
    named = [(rank, cost, one) for rank, cost, one in first if one is not None and one.ranks == [rank]]
    near = sum(abs((one.per_step_ns or 0) / cost - 1) < 0.25 for _, cost, one in named)
    rhythm = sum(one.period_steps == every for *_, one in named)
    wrong = sum(one.period_steps not in (every, None) for *_, one in named)
    others = sum(1 for rank, _, found in jobs for one in found if one.ranks != [rank] and one.kind != "pauses")
    twice = sum(max(sum(one.ranks == [rank] for one in found) - 1, 0) for rank, _, found in jobs)
    with capsys.disabled():
        print(f"\n| {steps} of {every} steps of {step_ns / MS:.0f} ms | {len(named)} of {number} | "
              f"cost within a quarter: {near} | rhythm: {rhythm}, wrong: {wrong} | others: {others} | "
              f"told twice: {twice} |")
    assert len(named) >= 0.95 * number and near >= 0.9 * number
    assert not others and wrong <= 0.02 * number
