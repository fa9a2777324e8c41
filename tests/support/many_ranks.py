"""Simulated runs of many ranks, from benchmarks/made_up/many_ranks.py."""

from __future__ import annotations

import sys
from pathlib import Path

from support.jobs import ROOT

BENCHMARKS = str(ROOT / "benchmarks")
if BENCHMARKS not in sys.path:  # its modules import each other by name
    sys.path.append(BENCHMARKS)

from made_up.many_ranks import StageCalls, summary_of, write, write_tables  # noqa: E402
from made_up.modules import Ranks  # noqa: E402
from made_up.pipelined_job import NONE, PipelinedJob, Plant, SlowLink  # noqa: E402
from made_up.recorded import PASSES, Recorded  # noqa: E402
from made_up.scaled_run import write_run  # noqa: E402

__all__ = [
    "FEW_STEPS", "NONE", "PASSES", "PipelinedJob", "Plant", "Ranks", "Recorded", "SlowLink", "StageCalls",
    "made_up_rank", "summary_of", "write", "write_run", "write_tables",
]

FEW_STEPS = ("wait", "count", "time", "time", *("trace",) * 3, *("arrivals",) * 4)


def made_up_rank(run: Path, *, rank: int = 5, job: PipelinedJob | None = None) -> tuple[Recorded, Path]:
    """Writes the folder of one rank of a simulated job."""
    job = job or PipelinedJob(pp=2, dp=2, tp=2, layers=3, microbatches=3)
    recorded = Recorded(job=job, passes=FEW_STEPS, kept=[rank])
    for stages in job.steps(len(FEW_STEPS)):
        recorded.add(stages)
    return recorded, recorded.write_rank(run, rank)
