"""Measures merging of many ranks, merging on a dask cluster, and merging of very long traces.

    python benchmarks/scale.py [--parts ranks cluster long] [--ranks 4 64 256 1024] [--megabytes 8]
                               [--long-ranks 8] [--long-gigabytes 5] [--repeat 3]

Traces are made up (made_up/traces.py).

* ranks: increasing numbers of ranks with traces of the same size, by threads of one process;
* cluster: the largest of these with at most 1,024 ranks, by threads, by `--workers 2`, and by a dask scheduler with two
  workers of one thread each, in turns. Their outputs must be identical;
* long: a few ranks with gigabytes each, compared with `gzip -1` of the same text.

Megabytes are of uncompressed text; files are gzipped. docs/cluster.md has the same table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from made_up.traces import same, write_large, write_ranks
from measuring.benchmark import DISTPROF, Found, Option, Ratio, files, run
from measuring.processes import Cost, Failed, peak_bytes, timed
from measuring.tables import megabytes, number, table
from measuring.turns import COSTS, cells, in_turns

HEAD = ("ranks", "text MB", "workers", *COSTS, "ms a rank", "worker MB", "core hours")
MOST_FOR_CLUSTER = 1024
FAR = 100_000
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Merges of the same ranks in the same way."""

    ranks: int
    num_bytes: int
    """Size of the uncompressed text."""
    workers: str
    costs: list[Cost] = field(default_factory=list)
    worker_bytes: list[int] = field(default_factory=list)
    """Peak resident set size of the larger dask worker, per run."""
    worker_cpu_s: list[float] = field(default_factory=list)

    @property
    def fastest(self) -> Cost:
        """The run with the least wall time."""
        return min(self.costs, key=lambda cost: cost.wall_s)

    @property
    def core_hours(self) -> float:
        """Processor time of all processes, in hours."""
        return (min(cost.cpu_s for cost in self.costs) + min(self.worker_cpu_s, default=0)) / 3600

    @property
    def client_bytes(self) -> int:
        """Peak resident set size of the command."""
        return max(cost.max_rss_bytes for cost in self.costs)

    def cells(self) -> list[str]:
        """Returns a row of the table."""
        return [str(self.ranks), megabytes(self.num_bytes), self.workers, *cells(self.costs),
                number(1000 * self.fastest.wall_s / self.ranks, 1), megabytes(max(self.worker_bytes, default=None)),
                number(self.core_hours, 4)]


def merge(traces: Path, out: Path, *words: str) -> list[str]:
    """Returns the command line of a merge."""
    return [*DISTPROF, "merge", "--force", str(traces), "--out", str(out), *words]


def ranks(counts: Sequence[int], megabytes_each: float, repeat: int, folder: Path) -> list[Row]:
    """Merges by threads of one process; returns a row per number of ranks."""
    found = []
    for count in counts:
        traces = folder / f"{count}"
        num_bytes = count * write_ranks(traces, count, megabytes_each)
        costs = in_turns({"": merge(traces, folder / "merged")}, repeat)[""]
        found.append(Row(ranks=count, num_bytes=num_bytes, workers=f"{os.cpu_count()} threads", costs=costs))
    return found


class Cluster:
    """A dask scheduler, and two workers with one thread each."""

    def __init__(self, folder: Path) -> None:
        file = folder / "scheduler.json"
        self._processes = [self._start("scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", file)]
        while not file.exists():
            time.sleep(0.1)
        self.words = ("--scheduler", _address(file))
        self._workers = [self._start("worker", self.words[1], "--nthreads", "1", "--no-nanny", "--local-directory",
                                     folder, "--memory-limit", "0") for _ in range(2)]
        self._processes += self._workers

    def _start(self, what: str, *words: object) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-m", f"distributed.cli.dask_{what}", "--no-dashboard",
                                 *map(str, words)], stderr=subprocess.DEVNULL)

    def cpu_s(self) -> float:
        """Returns the processor time of the workers so far."""
        stats = (Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split() for worker in self._workers)
        return sum((int(fields[11]) + int(fields[12])) / TICKS for fields in stats)

    def peak_bytes(self) -> int:
        """Returns the peak resident set size of the larger worker so far."""
        return max(peak_bytes(worker.pid) for worker in self._workers)

    def end(self) -> None:
        """Ends all processes."""
        for process in reversed(self._processes):
            process.terminate()
            process.wait()


def _address(file: Path) -> str:
    while True:
        try:
            return str(json.loads(file.read_text())["address"])
        except ValueError:  # the file is not complete yet
            time.sleep(0.1)


@contextmanager
def cluster_in(folder: Path) -> Iterator[Cluster]:
    """Yields a cluster and ends it."""
    folder.mkdir()
    found = Cluster(folder)
    try:
        yield found
    finally:
        found.end()


def cluster(count: int, megabytes_each: float, repeat: int, folder: Path) -> list[Row]:
    """Merges the same ranks in three ways, in turns; returns a row per way.

    Raises:
        Failed: Their outputs differ.
    """
    traces = folder / "ranks"
    num_bytes = count * write_ranks(traces, count, megabytes_each)
    with cluster_in(folder / "cluster") as dask:
        ways = {"2 threads": (), "--workers 2": ("--workers", "2"), "dask, 2 workers": dask.words}
        rows = [Row(ranks=count, num_bytes=num_bytes, workers=way) for way in ways]
        for _ in range(repeat):
            for row in rows:
                before, words = dask.cpu_s(), ways[row.workers]
                row.costs.append(timed(merge(traces, folder / f"merged{row.workers}", *words)))
                if words == dask.words:
                    row.worker_bytes.append(dask.peak_bytes())
                    row.worker_cpu_s.append(dask.cpu_s() - before)
    first, *others = (folder / f"merged{way}" for way in ways)
    for other in others:
        if not same(first, other):
            raise Failed(f"other bytes: {other.name}")
    return rows


def long(num_ranks: int, gigabytes: float, folder: Path) -> tuple[list[str], Ratio]:
    """Merges ranks of gigabytes, and runs `gzip -1` on the text of one; returns text and the ratio of CPU times."""
    first = write_large(folder / "long", num_ranks, 1000 * gigabytes)
    unpack = f'"{sys.executable}" -m isal.igzip -dc "{first}"'
    length = int(timed(["sh", "-c", f"{unpack} | wc -c"]).printed)
    gzip = timed(["sh", "-c", f"{unpack} | gzip -1 > /dev/null"])
    cost = timed(merge(folder / "long", folder / "merged"))
    rates = {"distprof merge": num_ranks * length / cost.wall_s, "gzip -1 of one rank": length / gzip.wall_s}
    said = (f"{num_ranks} ranks of {length / 1e9:.2f} GB of text ({first.stat().st_size / 1e6:.0f} MB gzipped, one "
            f"file under {num_ranks} names):")
    rows = [[name, *cells([one]), number(rate / 1e6, 0)]
            for (name, rate), one in zip(rates.items(), (cost, gzip), strict=True)]
    return ([said, table(("program", *COSTS, "MB/s of text"), rows)],
            Ratio(value=cost.cpu_s / num_ranks / gzip.cpu_s))


def far(rows: list[Row]) -> str:
    """Returns text with a linear extrapolation of the last two merges to `FAR` ranks."""
    few, many = rows[-2:]
    core_hours, resident = (_line(few.ranks, one, many.ranks, other) for one, other in (
        (few.core_hours, many.core_hours), (few.client_bytes, many.client_bytes)))
    gigabytes = many.num_bytes / many.ranks * FAR / 1e9
    return (f"Extrapolated by the line through the last two rows, not measured: {FAR} ranks of that length "
            f"({gigabytes:.0f} GB of text) take {core_hours:.1f} core hours and {resident / 1e6:.0f} MB in the client.")


def _line(first: float, at_first: float, second: float, at_second: float) -> float:
    """Returns the value at `FAR` of the line through two points."""
    return at_second + (at_second - at_first) / (second - first) * (FAR - second)


def ratios(rows: list[Row]) -> str:
    """Returns text with wall times relative to threads."""
    first, *others = rows
    return "; ".join(f"{row.workers} takes {row.fastest.wall_s / first.fastest.wall_s:.3f} of the time of "
                     f"{first.workers}" for row in others) + ". All wrote the same bytes."


def measure(args: argparse.Namespace) -> Found:
    """Returns the tables of the selected parts."""
    text, found = list[str](), dict[str, Ratio]()
    if "ranks" in args.parts:
        with files(args) as folder:
            rows = ranks(args.ranks, args.megabytes, args.repeat, folder)
        text += [table(HEAD, [row.cells() for row in rows]), *([far(rows)] if len(rows) > 1 else [])]
    if "cluster" in args.parts:
        with files(args) as folder:
            rows = cluster(max(count for count in args.ranks if count <= MOST_FOR_CLUSTER), args.megabytes, args.repeat,
                           folder)
        text += [table(HEAD, [row.cells() for row in rows]), ratios(rows)]
    if "long" in args.parts:
        with files(args) as folder:
            said, found["long: CPU of a rank / gzip -1"] = long(args.long_ranks, args.long_gigabytes, folder)
        text += said
    return Found(text=text, ratios=found)


PARTS = ["ranks", "cluster", "long"]
if __name__ == "__main__":
    run(measure, __doc__,
        parts=Option(default=PARTS, smallest=PARTS),
        ranks=Option(default=[4, 64, 256, 1024], smallest=[2], help="numbers of ranks (default: %(default)s)"),
        megabytes=Option(default=8.0, smallest=0.1, help="of text of each (default: %(default)s)"),
        long_ranks=Option(default=8, smallest=2, help="ranks that are long (default: %(default)s)"),
        long_gigabytes=Option(default=5.0, smallest=0.001, help="of text of each (default: %(default)s)"),
        repeat=Option(default=3, smallest=1, help="merges of each (default: %(default)s)"))
