"""Measures the computations of `distprof comms` on a simulated run of many ranks: reading, matching, clocks, blame.

    python benchmarks/comms.py [--ranks 512] [--layers 16] [--lost 0] [--repeat 3]

Tensor parallel groups have 8 ranks, which are on one host; data parallel groups divide the rest. Hosts did not compare
their clocks, so these are estimated from the collectives. With the default size, a million rows are read. `--lost`
removes this number of rows from random ranks; then sequence numbers are not enough to match collectives.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from made_up.many_ranks import write_tables
from made_up.pipelined_job import PipelinedJob
from made_up.recorded import Recorded
from measuring.benchmark import Found, Option, Ratio, files, run
from measuring.contenders import PROGRAMS
from measuring.processes import apart, timed
from measuring.tables import number, spread, table
from measuring.yardstick import yardstick_s

TP = 8
PASSES = ("trace",) * 4
HEAD = ("part", "wall s", "CPU s", "rows a second")


def make(out: Path, num_ranks: int, layers: int, lost: int) -> None:
    """Writes the run, with 31 calls per layer in a step of a rank."""
    job = PipelinedJob(pp=1, dp=num_ranks // TP, tp=TP, layers=layers, microbatches=15)
    write_tables(out, Recorded(job=job, passes=PASSES, kept=range(num_ranks), are_compared=False, lost=lost))


def measure(args: argparse.Namespace) -> Found:
    """Returns a table with a row per part."""
    with files(args) as folder:
        apart(make, folder / "run", args.ranks, args.layers, args.lost)
        found: list[dict[str, Any]] = [json.loads(
            timed([sys.executable, str(PROGRAMS / "comms_rows.py"), str(folder / "run")]).printed.splitlines()[-1])
            for _ in range(args.repeat)]
    for one in found:
        for clock in ("seconds", "cpu_seconds"):
            one[clock]["all"] = sum(one[clock].values())
    first = found[0]
    lines = [[part, *(spread([one[clock][part] for one in found], 2) for clock in ("seconds", "cpu_seconds")),
              number(first["rows"] / min(one["seconds"][part] for one in found), 0)] for part in first["seconds"]]
    peak = max(one["bytes"] for one in found)
    said = (f"{args.ranks} ranks, {first['rows']} rows, {first['collectives']} collectives, {first['complete']} rows "
            f"in complete ones; peak memory {peak / 1e6:.0f} MB; median (least .. most) of {args.repeat} runs:")
    ratio = Ratio(value=min(one["cpu_seconds"]["all"] for one in found) / yardstick_s())
    return Found(text=[said, table(HEAD, lines)], ratios={"all: CPU / yardstick": ratio})


if __name__ == "__main__":
    run(measure, __doc__,
        ranks=Option(default=512, smallest=16, help="multiple of 8 (default: %(default)s)"),
        layers=Option(default=16, smallest=1, help="of the model (default: %(default)s)"),
        lost=Option(default=0, smallest=2, help="rows that are missing (default: %(default)s)"),
        repeat=Option(default=3, smallest=1, help="runs (default: %(default)s)"))
