"""A run comes in, seconds and memory of matching and measuring its collectives go out as JSON.

python comms_rows.py RUN
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from distprof.merge.blame.analysis import analyse
from distprof.merge.cost.bandwidth import bandwidths
from distprof.merge.cost.collectives import measured
from distprof.merge.cost.matrix import bytes_between
from distprof.merge.match.matching import match
from distprof.merge.match.recorded_rows import recorded
from distprof.merge.run.read_run import read_run
from distprof.merge.run.run_model import Run

Result = TypeVar("Result")
WORK: dict[str, Callable[[pl.DataFrame], Any]] = {"bandwidths": bandwidths, "matrix": bytes_between}
"""What is made of the measured rows, and measured too."""


class Watch:
    """Seconds of named parts, on the wall and of all cores."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.cpu_seconds: dict[str, float] = {}

    def of(self, name: str, work: Callable[[], Result]) -> Result:
        """Does it and keeps how long it took."""
        begin, cpu = time.perf_counter(), time.process_time()
        result = work()
        self.seconds[name], self.cpu_seconds[name] = time.perf_counter() - begin, time.process_time() - cpu
        return result


def peak_bytes() -> int:
    """The largest resident set of this process since it began."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("expected VmHWM in /proc/self/status")


def main(path: str) -> None:
    """Without the imports."""
    watch = Watch()
    run = watch.of("open", lambda: read_run(Path(path)))
    rows = watch.of("measure", lambda: measured(run, _matched(run, watch)))
    for seconds in (watch.seconds, watch.cpu_seconds):
        seconds["measure"] -= seconds["load"] + seconds["match"]
    for name, work in WORK.items():
        watch.of(name, partial(work, rows))
    watch.of("blame", lambda: analyse(run, rows))
    told: dict[str, Any] = {
        "rows": rows.height, "collectives": rows["collective"].n_unique(), "complete": int(rows["complete"].sum()),
        "bytes": peak_bytes(), "seconds": watch.seconds, "cpu_seconds": watch.cpu_seconds}
    print(json.dumps(told))


def _matched(run: Run, watch: Watch) -> pl.DataFrame:
    found = watch.of("load", lambda: recorded(run))
    return watch.of("match", lambda: match(found.rows, ranks=found.ranks, world_size=run.world_size))


if __name__ == "__main__":
    main(*sys.argv[1:])
