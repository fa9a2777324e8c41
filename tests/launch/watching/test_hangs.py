"""Jobs that hang are told while they do, and those that are only slow are not."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from distprof.contract.paths import STUCK_JSON
from support.hanging_jobs import SEEN_STOP, STOP, WITHIN_S, HangingJob, Told

pytestmark = [pytest.mark.job, pytest.mark.skipif(sys.platform != "linux", reason="jobs are watched on Linux")]
HANGS = {  # what is told has to say
    "dead": ("rank {who} ended", "wait_for_store"), "stopped": ("rank {who} was stopped by a signal",),
    "branch": ("of second", "of first"), "op": ("called differently",),
    "lock": ("rank {who} never entered", "in take_lock"), "loader": ("rank {who} never entered",),
    "store": ("rank {who} never entered", "in wait_for_store"), "fifo": ("rank {who} never entered", "in open_fifo"),
    "all fifo": ("in open_fifo",), "native": ("rank {who} is idle",), "no folder": ("rank {who} is idle",)}
ANYBODY = ("all fifo", "branch", "op")
"""Where no rank is the one to blame."""
Planted = tuple[str, int, int]
"""How, number of ranks, and which one."""
PLANTED: list[Planted] = [*((how, 2, 1) for how in HANGS), *((how, 3, 2) for how in HANGS),
                          *((how, 3, 0) for how in HANGS if how not in (*ANYBODY,))]
SLOW = ("slow rank", "evaluation", "checkpoint", "compiler", "slow loader")
SIDE_BY_SIDE = 3


def is_right(planted: Planted, told: Told, said: str) -> bool:
    """The launcher said who, where and in what, and names nobody else."""
    (how, size, who), one = planted, told.finding
    if one is None or one.text not in said:
        return False
    words, stop = " ".join([one.text, *one.why]), SEEN_STOP if how == "no folder" else STOP
    everybody = list(range(size))
    return (all(part.format(who=who) in words for part in HANGS[how]) and one.onset_step - stop in (0, 1)
            and (set(one.ranks) <= set(everybody) if how in ANYBODY else one.ranks == [who]))


def told_of(folder: Path, planted: Planted) -> tuple[Told, str, int]:
    """What is told of a job, all that it printed, and how it ended."""
    job = HangingJob(folder, *planted)
    try:
        told = job.listen()
    finally:
        if job.process.poll() is None:
            job.over()
    return told, job.said, job.process.returncode


@pytest.mark.core
@pytest.mark.parametrize("how", ["lock", "stopped"])
def test_a_hang_is_told_while_it_hangs(tmp_path, how):
    told, said, _ = told_of(tmp_path, (how, 2, 1))
    assert is_right((how, 2, 1), told, said), (told, said)
    assert told.finding is not None and told.finding.until_step is None


def test_a_job_that_is_slow_does_not_hang(tmp_path):
    told, said, code = told_of(tmp_path, ("slow rank", 2, 1))
    assert told.finding is None and code == 0 and "stuck" not in said, (told, said)
    assert not list((tmp_path / "run").glob(f"rank*/{STUCK_JSON}"))  # what was asked for is taken back


def side_by_side(folder: Path, plan: Sequence[Planted], judged: Callable[[Planted, Told, str, int], bool]) -> list[str]:
    """What was judged wrong of these jobs; all of it is printed."""
    def one(number: int) -> tuple[bool, Told, str]:
        told, said, code = told_of(folder / str(number), plan[number])
        return judged(plan[number], told, said, code), told, said

    wrong, after = [], []
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        for planted, (good, told, said) in zip(plan, pool.map(one, range(len(plan))), strict=True):
            print(planted, "right" if good else "WRONG", told, flush=True)
            after += [told.after_s] if told.finding is not None else []
            wrong += [] if good else [f"{planted}: {told}; {told.finding}; {said[-2000:]}"]
    print(f"{len(plan) - len(wrong)} of {len(plan)} right; {len(after)} told, {sum(one <= WITHIN_S for one in after)} "
          f"within {WITHIN_S:.0f} s, all within {max(after, default=0):.1f} s", *wrong, sep="\n")
    return wrong


@pytest.mark.stress
def test_planted_hangs(tmp_path):
    wrong = side_by_side(tmp_path, PLANTED, lambda planted, told, said, _: is_right(planted, told, said) and (
        told.after_s <= WITHIN_S))
    assert len(PLANTED) == 30 and len(wrong) <= 2


@pytest.mark.stress
def test_slow_jobs(tmp_path):
    plan = [(how, size, 1) for how in SLOW for size in (2, 3)]
    assert not side_by_side(tmp_path, plan, lambda _, told, said, code: (
        told.finding is None and code == 0 and "stuck" not in said))
