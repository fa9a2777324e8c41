"""Prints the time and memory of everything that `distprof comms RUN` computes, as JSON.

python comms_rows.py RUN
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from distprof.merge.blame.analysis import analyse
from distprof.merge.clock.choose import choose_clock, hosts_of, recorded_clock
from distprof.merge.clock.model import Clock
from distprof.merge.cost.collective_sums import coverage, kinds, per_collective
from distprof.merge.cost.measures import measured_collectives
from distprof.merge.match.matched_run import rows_of_ranks
from distprof.merge.match.matching import match
from distprof.merge.run.open_run import open_run
from distprof.merge.run.run_model import Run

Result = TypeVar("Result")


class Watch:
    """Wall time and processor time (over all threads) of named parts, in seconds."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.cpu_seconds: dict[str, float] = {}

    def of(self, name: str, work: Callable[[], Result]) -> Result:
        """Runs the work and stores its times."""
        begin, cpu = time.perf_counter(), time.process_time()
        result = work()
        self.seconds[name], self.cpu_seconds[name] = time.perf_counter() - begin, time.process_time() - cpu
        return result


def peak_bytes() -> int:
    """Returns the peak resident set size of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("expected VmHWM in /proc/self/status")


def main(path: str) -> None:
    """Measures without imports."""
    watch = Watch()
    run = watch.of("open", lambda: open_run(Path(path)))
    rows, clock = _measured(run, watch)
    each = watch.of("by collective", lambda: per_collective(rows))
    watch.of("by kind", lambda: (kinds(each, each["step"].n_unique()), coverage(each)))
    watch.of("blame", lambda: analyse(run, clock, rows, None))
    figures: dict[str, Any] = {
        "rows": rows.height, "collectives": rows["collective"].n_unique(), "complete": int(rows["complete"].sum()),
        "clock": clock.method, "bytes": peak_bytes(), "seconds": watch.seconds, "cpu_seconds": watch.cpu_seconds}
    print(json.dumps(figures))


def _measured(run: Run, watch: Watch) -> tuple[pl.DataFrame, Clock]:
    """Does the work of `measured_run`, and measures its parts."""
    loaded = watch.of("load", lambda: rows_of_ranks(run))
    matched = watch.of("match", lambda: match(loaded.rows, ended=(), world_size=run.world_size))
    clock = watch.of("clock", lambda: choose_clock(run, recorded_clock(run), "auto", matched))
    return watch.of("measure", lambda: measured_collectives(matched, clock, hosts_of(run))), clock


if __name__ == "__main__":
    main(*sys.argv[1:])
