"""Measures how often late ranks of simulated jobs, and other ranks, are blamed on the basis of the files of hosts.

    python benchmarks/late_of_many.py [--jobs 60] [--first 0] [--sizes 4 32 8] [--exact]

Each job has 1 to 8 late ranks, with delays of 5 % of a step in a module, the data or the optimizer, and heavy-tailed
noise; in some jobs, ranks occasionally pause for long. The cost of a delay is known from the same job with only this
delay: one that costs at least 3 % of a step must be named; one that costs less than 1 %, because the rank would have
waited anyway, must not. With `--exact`, jobs are also judged on the basis of all tables.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from made_up.many_ranks import write
from made_up.pipelined_job import PipelinedJob, Plant
from measuring.benchmark import Found, Option, files, run
from measuring.tables import table

from distprof.contract.tables import STEPS
from distprof.merge.blame.analysis import Analysis, analyse
from distprof.merge.blame.culprits import Culprit
from distprof.merge.blame.of_many import analysis_of_many
from distprof.merge.cost.joined_run import joined_run
from distprof.merge.cost.measured_run import measured_run
from distprof.merge.run.open_run import open_run
from distprof.merge.run.tables import read_table

HAS_TO, MUST_NOT = 0.03, 0.01
"""Costs of a delay as fractions of a step: from the first, it must be named; below the second, it must not."""
DELAY = 0.05
TALLIED = ("jobs", "worth", "named", "right", "harmless", "harmless but named", "false", "jobs with a false name",
           "jobs with the same names")
COST_STEPS = 12
"""Number of steps from which the cost of a delay is computed."""


class HeavyTails:
    """Replaces normal noise: Student's t, and pauses with a Pareto distribution."""

    def __init__(self, seed: int, pauses: float) -> None:
        self._random, self._pauses = np.random.default_rng(seed), pauses

    def standard_normal(self, shape: Any, kind: Any) -> Any:
        pause = (self._random.random(shape) < self._pauses) * self._random.pareto(1.5, shape) * 10
        return (self._random.standard_t(3, shape) + pause).astype(kind)

    def integers(self, *arguments: Any) -> Any:
        return self._random.integers(*arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyJob(PipelinedJob):
    """A job with heavy-tailed noise."""

    pauses: float = 0.0005
    """Probability that a piece of work is interrupted by a pause."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "chance", HeavyTails(self.seed, self.pauses))


def step_ns(job: PipelinedJob, plants: Sequence[Plant]) -> float:
    """Returns the mean step time of the same job with only these delays, over `COST_STEPS` steps."""
    ends = [max(int(stage.end.max()) for stage in stages) for stages in replace(job, plants=plants).steps(COST_STEPS)]
    return float(np.diff(ends).mean())


def random_job(seed: int, sizes: Sequence[int]) -> NoisyJob:
    """Returns a random job with delays."""
    random = np.random.default_rng([seed, 7])
    pp, dp, tp = sizes
    job = NoisyJob(pp=pp, dp=dp, tp=tp, seed=seed, jitter=float(random.choice([0.002, 0.005, 0.01])),
                   pauses=float(random.choice([0.0, 0.0002, 0.001])))
    ns = round(DELAY * step_ns(job, ()))
    ranks = random.choice(job.num_ranks, random.integers(1, 9), replace=False).tolist()
    kinds = [str(random.choice(["forward", "backward", "data", "optimizer"])) for _ in ranks]
    return replace(job, plants=[Plant(rank, kind, int(random.integers(job.layers)), ns)
                                for rank, kind in zip(ranks, kinds, strict=True)])


def is_right(one: Culprit, plant: Plant) -> bool:
    """Returns whether the named cause is the planted one."""
    first = one.causes[0] if one.causes else None
    if first is None or first.kind != plant.kind:
        return False
    return plant.kind not in ("forward", "backward") or (first.where or "").startswith(f"layers.{plant.layer}")


def tally(job: PipelinedJob, certain: Sequence[Culprit], costs: Sequence[float]) -> Counter[str]:
    """Counts how ranks of a job were judged.

    Args:
        job: The job with its delays.
        certain: Ranks that are named.
        costs: Cost of each delay alone, as a fraction of a step.
    """
    by_rank = {one.rank: one for one in certain}
    found = Counter[str](jobs=1, false=len(set(by_rank) - {plant.rank for plant in job.plants}))
    found["jobs with a false name"] += found["false"] > 0
    for plant, cost in zip(job.plants, costs, strict=True):
        one = by_rank.get(plant.rank)
        if cost >= HAS_TO:
            found.update(worth=1, named=one is not None, right=one is not None and is_right(one, plant))
        elif cost < MUST_NOT:
            found.update(harmless=1, **{"harmless but named": one is not None})
    return found


def judged(run: Path) -> tuple[Analysis, float]:
    """Returns the analysis based on the files of hosts, and its processor seconds."""
    begin = time.process_time()
    opened = open_run(run, by_host=True)
    assert opened.by_host, "there are too few ranks for files of hosts to be read"
    return analysis_of_many(joined_run(opened, read_table(opened, STEPS).rows)), time.process_time() - begin


def exactly(run: Path) -> list[Culprit]:
    """Returns the culprits based on the tables of all ranks."""
    found = measured_run(open_run(run))
    assert found.collectives is not None, "the run has collectives"
    return analyse(found.run, found.clock, found.collectives, read_table(found.run, STEPS).rows).culprits


def measure(args: argparse.Namespace) -> Found:
    """Returns the counts of all jobs."""
    total, seconds, errors = Counter[str](), list[float](), list[float]()
    with files(args) as folder:
        for seed in range(args.first, args.first + args.jobs):
            job = random_job(seed, args.sizes)
            write(run_folder := folder / "run", job, full=args.exact)
            found, took = judged(run_folder)
            every = step_ns(job, ())
            costs = [step_ns(job, [plant]) / every - 1 for plant in job.plants]
            by_rank = {one.rank: one for one in found.culprits if one.certain}
            mine = tally(job, [*by_rank.values()], costs)
            if args.exact:
                others = {one.rank for one in exactly(run_folder) if one.certain}
                mine["jobs with the same names"] = others == set(by_rank)
            shutil.rmtree(run_folder)
            errors += [by_rank[plant.rank].last_gain_ns / every / cost - 1 for plant, cost in zip(
                job.plants, costs, strict=True) if plant.rank in by_rank and cost >= HAS_TO]
            total, seconds = total + mine, [*seconds, took]
            if mine["right"] < mine["worth"] or mine["false"] or mine["harmless but named"]:
                print(f"{seed}: {dict(mine)}; planted {[tuple(plant[:3]) for plant in job.plants]}, "
                      f"named {[(one.rank, one.causes[0].kind if one.causes else None) for one in by_rank.values()]}, "
                      f"costs {[round(cost, 3) for cost in costs]}", file=sys.stderr, flush=True)
    text = [table(("of all jobs", "number"), [[what, str(total[what])] for what in TALLIED if what in total])]
    if errors:
        text.append(f"Gain against the truth: median {np.median(errors):+.1%}, nine of ten within "
                    f"{np.quantile(np.abs(errors), 0.9):.1%}. Read and judged in {np.median(seconds):.2f} s of a "
                    "processor (median).")
    return Found(text=text)


if __name__ == "__main__":
    run(measure, __doc__,
        jobs=Option(default=60, smallest=1), first=Option(default=0, smallest=0, help="seed of the first"),
        sizes=Option(default=[4, 32, 8], smallest=[2, 5, 8], help="pp, dp and tp (default: %(default)s)"),
        exact=Option(default=False, smallest=False))
