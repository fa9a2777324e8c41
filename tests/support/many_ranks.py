"""Made-up runs of many ranks, as benchmarks/many_ranks.py writes them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.jobs import ROOT, clean_environ

BENCHMARKS = str(ROOT / "benchmarks")
if BENCHMARKS not in sys.path:  # its files import each other by name
    sys.path.append(BENCHMARKS)

from made_up_ranks import PASSES, Recorded  # noqa: E402
from many_ranks import StageSketches, summary_of, write  # noqa: E402
from pipelined_job import NONE, PipelinedJob, Plant  # noqa: E402
from scaled_run import write_run  # noqa: E402
from tables_of_many import Ranks  # noqa: E402

__all__ = [
    "FEW_STEPS", "NONE", "PASSES", "PipelinedJob", "Plant", "Ranks", "Recorded", "StageSketches", "made_up_rank",
    "peak_bytes", "summary_of", "write", "write_run",
]

FEW_STEPS = ("wait", "count", "time", "time", *("trace",) * 3, *("arrivals",) * 4)


def made_up_rank(run: Path, *, rank: int = 5, job: PipelinedJob | None = None) -> tuple[Recorded, Path]:
    """The folder of one rank of a job."""
    job = job or PipelinedJob(pp=2, dp=2, tp=2, layers=3, microbatches=3)
    recorded = Recorded(job=job, passes=FEW_STEPS, kept=[rank])
    for stages in job.steps(len(FEW_STEPS)):
        recorded.add(stages)
    return recorded, recorded.write_rank(run, rank)


MEASURE = """
import os, subprocess, sys
process = subprocess.Popen([sys.executable, "-m", "distprof", *sys.argv[1:]], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
process.returncode = os.waitstatus_to_exitcode(status)
print(usage.ru_maxrss)
sys.exit(process.returncode)
"""
"""A small process: what is measured counts a fork of the one that starts it, and pytest is large."""


def peak_bytes(*words: object) -> int:
    """The largest resident set of a command."""
    done = subprocess.run([sys.executable, "-c", MEASURE, *map(str, words)], stdout=subprocess.PIPE, check=True,
                          env=clean_environ())
    return int(done.stdout) * 1024
