"""Measures complete commands, including the start of Python, on runs of many ranks.

    python benchmarks/commands.py [--runs late calls modules recorded bare] [--sizes 2] [--repeat 3]

* late: a made-up job with pipeline, data and tensor parallel groups of 8 x dp x 8 ranks, two of them late; summaries of
  all ranks, folders of the first replica and of the late ranks;
* calls: 512 made-up ranks with a million calls of collectives and no summaries, so that all tables are read;
* modules: data parallel ranks of a model with 1,000 modules, also without summaries;
* recorded: ranks recorded completely by distprof (sharded_job.py, copies of 4 ranks), with their summaries;
* bare: the same without summaries, as an older version recorded.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from made_up.many_ranks import write, write_tables
from made_up.modules import Ranks
from made_up.pipelined_job import PipelinedJob, Plant
from made_up.recorded import Recorded
from made_up.scaled_run import write_run
from measuring.benchmark import DISTPROF, Found, Option, Ratio, files, run
from measuring.processes import apart, timed
from measuring.tables import table
from measuring.turns import COSTS, cells, cpu_s, in_turns
from measuring.yardstick import yardstick_s

from distprof.contract.paths import rank_folder
from distprof.summaries.host_file import packed_frame
from distprof.summaries.maker import summarise

JOB = Path(__file__).parent / "programs" / "sharded_job.py"
CALLS = ("time",) * 3 + ("trace",) * 4
RECORDED = ("merge", "comms", "ops", "critical-path", "report")
AXIS = 8
"""Number of pipeline stages, and of ranks in a tensor parallel group."""


class Sizes(NamedTuple):
    """Sizes of models."""

    layers: int
    """Number of layers of the job that is recorded."""
    modules: int


def late(out: Path, num_ranks: int, _: Sizes) -> None:
    """Writes a run with a rank that is late in forward, and another in data loading."""
    plants = Plant(num_ranks // 3, "forward", 2, 6_000_000), Plant(1, "data", 0, 9_000_000)
    pp = min(AXIS, max(1, num_ranks // AXIS // AXIS))
    write(out, PipelinedJob(pp=pp, dp=num_ranks // pp // AXIS, tp=AXIS, plants=plants))


def calls(out: Path, num_ranks: int, _: Sizes) -> None:
    """Writes a run with 496 collective calls in each of four steps of a rank."""
    job = PipelinedJob(pp=1, dp=num_ranks // AXIS, tp=AXIS, layers=16, microbatches=15)
    write_tables(out, Recorded(job=job, passes=CALLS, kept=range(num_ranks)))


def modules(out: Path, num_ranks: int, sizes: Sizes) -> None:
    """Writes a run with only the tables that totals need."""
    Ranks(num_ranks=num_ranks, num_modules=sizes.modules).write(out)


def recorded(out: Path, num_ranks: int, sizes: Sizes, *, summaries: bool) -> None:
    """Writes a run from a job that is recorded only once."""
    source = out.parent / "sharded"
    if not source.exists():
        timed([sys.executable, str(JOB), str(source), str(sizes.layers)])
    apart(partial(write_run, summaries=summaries), source, out, num_ranks)


class Kind(NamedTuple):
    """A kind of runs, and the commands that are measured on them."""

    write: Callable[[Path, int, Sizes], None]
    """Writes a run with the given number of ranks."""
    ranks: tuple[int, ...]
    commands: tuple[str, ...]


KINDS = {
    "late": Kind(partial(apart, late), (128, 1024, 16_384), ("stats", "comms", "report --json")),
    "calls": Kind(partial(apart, calls), (16, 512), ("comms", "report")),
    "modules": Kind(partial(apart, modules), (8, 64, 512, 2048), ("stats", "stats --modules")),
    "recorded": Kind(partial(recorded, summaries=True), (4, 64, 256, 1024, 4096), RECORDED),
    "bare": Kind(partial(recorded, summaries=False), (4, 64, 256, 1024), RECORDED)}
USUAL = ["late", "calls", "modules", "recorded"]


def measure(args: argparse.Namespace) -> Found:
    """Returns a table with a row per command and run, and ratios of the largest run of each kind."""
    rows, ratios, yardstick, summary_s = list[list[str]](), dict[str, Ratio](), yardstick_s(), None
    with files(args) as folder:
        for kind in args.runs:
            sizes = [min(number, args.most) for number in KINDS[kind].ranks[:args.sizes]]
            for num_ranks in sizes:
                made, commands = folder / "run", KINDS[kind].commands
                KINDS[kind].write(made, num_ranks, Sizes(args.layers, args.modules))
                for command, costs in in_turns({name: [*DISTPROF, *name.split(), str(made), *_out(name, folder)]
                                                for name in commands}, args.repeat).items():
                    rows.append([f"{kind}, {num_ranks} ranks", command, *cells(costs)])
                    if num_ranks == sizes[-1]:
                        ratios[f"{command}, {kind}: CPU / yardstick"] = Ratio(value=cpu_s(costs) / yardstick)
                if kind == "late":
                    summary_s = cost_of_summary(made / rank_folder(0))
                shutil.rmtree(made)
    said = [] if summary_s is None else [f"At its end a late rank spends {1e3 * summary_s:.1f} ms on its summary."]
    return Found(text=[table(("run", "command", *COSTS), rows), *said], ratios=ratios)


def _out(command: str, folder: Path) -> list[str]:
    """Returns options that make a command write its output again in each run."""
    return {"merge": ["--force", "--out", str(folder / "merged")],
            "report": ["--force", "--out", str(folder / "report.html")]}.get(command, [])


def cost_of_summary(folder: Path, times: int = 20) -> float:
    """Returns processor seconds for creating and packing the summary of a rank, without imports."""
    packed_frame(summarise(folder))
    begin = time.process_time()
    for _ in range(times):
        packed_frame(summarise(folder))
    return (time.process_time() - begin) / times


if __name__ == "__main__":
    run(measure, __doc__,
        runs=Option(default=USUAL, smallest=USUAL, help=f"of {', '.join(KINDS)} (default: all but bare)"),
        sizes=Option(default=2, smallest=1, help="of each kind, from the smallest on (default: %(default)s)"),
        most=Option(default=100_000, smallest=16, help="ranks of a run (default: %(default)s)"),
        modules=Option(default=1000, smallest=20, help="of the model that has many (default: %(default)s)"),
        layers=Option(default=24, smallest=1, help="of the job that is recorded (default: %(default)s)"),
        repeat=Option(default=3, smallest=1, help="runs of each command (default: %(default)s)"))
