"""Jobs in which something goes wrong at a random moment: the job ends as it would have, what was recorded can be read,
and what was lost is said. `make stress`; CHAOS_JOBS=200 runs more of them, CHAOS_SEED=1000 others."""

from __future__ import annotations

import os
import random
import time
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from support import forked
from support.chaos.disk import failing_files
from support.chaos.job import ChaosJob
from support.chaos.judge import Left, assert_complete, assert_no_error_of_ours, copy_of, trained_to_the_end
from support.chaos.troubles import SURVIVED, Trouble, kinds
from support.processes import children, left_after

NUM_JOBS, FIRST_SEED = int(os.environ.get("CHAOS_JOBS", "40")), int(os.environ.get("CHAOS_SEED", "0"))
PATIENCE_S = 90
"""For a job that takes ten seconds on an idle machine."""
END_S = 25
"""For one that is told to end, or has lost a rank: without distprof it takes two."""

pytestmark = pytest.mark.stress


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    return failing_files(tmp_path_factory.mktemp("library"))


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What as many ranks train without distprof, where nothing goes wrong."""
    @cache
    def trained(ranks: int) -> list[str]:
        job = ChaosJob(tmp_path_factory.mktemp("alone"), ranks=ranks, launcher="alone")
        code, told = job.end(PATIENCE_S)
        job.close()
        assert code == 0, told
        return job.trained()

    return trained


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + NUM_JOBS))
def test_whatever_goes_wrong_the_job_ends_as_it_would_have_and_losses_are_said(tmp_path, seed, library, alone):
    chance = random.Random(seed)
    every = kinds()
    ranks, launcher = chance.choice([2, 2, 3, 4]), chance.choice(["run", "run", "torchrun"])
    step, later_s = chance.choice([-1, *range(18)]), chance.uniform(0, 0.15)
    forked.server()  # it stays for the next job
    before = set(children())
    with ExitStack() as stack:
        trouble = every[seed % len(every)](folder=tmp_path, chance=chance, library=library, stack=stack)
        trouble.prepare()
        job = ChaosJob(tmp_path, ranks=ranks, launcher=launcher, restarts=trouble.restarts, **trouble.environ)
        stack.callback(job.close)
        if step < 0:
            time.sleep(chance.uniform(0, 6))
        else:
            job.wait_for_step(step)
            time.sleep(later_s)
        reached = job.progress()
        trouble.strike(job)
        print(f"seed {seed}: {type(trouble).__name__}{trouble.details}, {ranks} ranks by {launcher}, step {reached}")
        code, told = job.end(PATIENCE_S if trouble.ends == SURVIVED else END_S)
        print(told)
        trouble.heal(job)
        assert_no_error_of_ours(told)
        assert_ended_as_it_would_have(job, trouble, code, alone(ranks), told)
        run = copy_of(job, tmp_path)
        if run is not None:
            assert_what_is_left(Left(run), job, trouble, reached)
        assert left_after(5, before) == []


def assert_ended_as_it_would_have(job: ChaosJob, trouble: Trouble, code: int, trained: list[str], told: str) -> None:
    if code == 0:
        assert trained_to_the_end(job) and job.trained() == trained, told
    elif job.launcher == "run":
        assert code in trouble.ends, told
    else:
        assert trouble.ends != SURVIVED and code == 1, told


def assert_what_is_left(left: Left, job: ChaosJob, trouble: Trouble, reached: dict[int, int]) -> None:
    if not trouble.loses:
        assert_complete(left, job.ranks)
        return
    final = job.progress()
    for rank in range(job.ranks):
        if trouble.keeps(rank):
            left.assert_passes_are_there(rank, reached.get(rank, 0)) if reached.get(rank) else None
        left.assert_losses_are_named(rank, final.get(rank, 0))
