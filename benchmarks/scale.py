"""Measures merging of many ranks, on a cluster of dask, and of very long traces.

    python benchmarks/scale.py [ranks] [cluster] [long] [--ranks 4,64,256,1024] [--megabytes 8]
                               [--long-ranks 8] [--long-gigabytes 5] [--repeat 3] [--in FOLDER] [--record]

Traces are made up (scaled_traces.py), in a folder that is removed at the end.

* ranks: more and more ranks of the same length, by threads of one process: time and memory for each;
* cluster: the largest of these that has no more than 1,024 ranks, by threads, by `--workers 2`, and by a scheduler of
  dask with two workers of one thread each, in turns. The bytes that they write are compared;
* long: a few ranks of gigabytes, beside `gzip -1` of the same text.

Megabytes are those of text; files are gzipped. Memory is the largest resident set of the process, VmHWM; of a cluster
that of the client and of the largest worker. `--record` puts the tables into RESULTS.md; those of docs/cluster.md are
the same.
"""

from __future__ import annotations

import argparse
import filecmp
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import merge_text as text
from growth import RESULTS
from processes import Cost, timed
from scaled_traces import write_large, write_ranks

HEADING = "## scale.py"
HEAD = ("ranks", "text MB", "workers", "wall s", "ms a rank", "others", "client MB", "worker MB", "core hours")
MOST_FOR_CLUSTER = 1024
FAR = 100_000
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A merge."""

    ranks: int
    num_bytes: int
    """Of text."""
    workers: str
    cost: Cost
    worker_bytes: int | None = None
    """Largest resident set of a worker that is a process of its own."""
    worker_cpu_s: float = 0.0

    @property
    def core_hours(self) -> float:
        """Processor time of all processes."""
        return (self.cost.cpu_s + self.worker_cpu_s) / 3600


def merge(folder: Path, out: Path, *words: str) -> Cost:
    """Merges the traces of a folder into a new one."""
    shutil.rmtree(out, ignore_errors=True)
    return timed([sys.executable, "-m", "distprof", "merge", str(folder), "--out", str(out), *words])


def ranks(counts: list[int], megabytes: float, repeat: int, folder: Path) -> list[Row]:
    """A row a number of ranks, by threads of one process; of each the fastest merge."""
    found = []
    for count in counts:
        traces = folder / f"{count}"
        num_bytes = count * write_ranks(traces, count, megabytes)
        costs = [merge(traces, folder / "merged") for _ in range(repeat)]
        found.append(Row(ranks=count, num_bytes=num_bytes, workers=f"{os.cpu_count()} threads",
                         cost=min(costs, key=lambda cost: cost.wall_s)))
        print(f"{count} ranks: {found[-1].cost.wall_s:.1f} s, {found[-1].cost.max_rss_bytes / 1e6:.0f} MB", flush=True)
        shutil.rmtree(traces)
    shutil.rmtree(folder / "merged", ignore_errors=True)
    return found


class Cluster:
    """A scheduler of dask, and two workers of one thread each."""

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
        """Processor time of the workers until now."""
        stats = (Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split() for worker in self._workers)
        return sum((int(fields[11]) + int(fields[12])) / TICKS for fields in stats)

    def peak_bytes(self) -> int:
        """Of the larger worker until now."""
        return max(_peak_bytes(worker.pid) for worker in self._workers)

    def end(self) -> None:
        """Ends all of it."""
        for process in reversed(self._processes):
            process.terminate()
            process.wait()


def _address(file: Path) -> str:
    import json

    while True:
        try:
            return str(json.loads(file.read_text())["address"])
        except ValueError:  # it is being written
            time.sleep(0.1)


def _peak_bytes(pid: int) -> int:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmHWM"].split()[0]) * 1024


@contextmanager
def cluster_in(folder: Path) -> Iterator[Cluster]:
    """A cluster for the while."""
    folder.mkdir()
    found = Cluster(folder)
    try:
        yield found
    finally:
        found.end()


def cluster(count: int, megabytes: float, repeat: int, folder: Path) -> list[Row]:
    """Three ways to merge the same ranks, in turns; of each the fastest."""
    traces = folder / "ranks"
    num_bytes = count * write_ranks(traces, count, megabytes)
    best = dict[str, Row]()
    with cluster_in(folder / "cluster") as dask:
        ways = {"2 threads": (), "--workers 2": ("--workers", "2"), "dask, 2 workers": dask.words}
        for number in range(repeat):
            for way, words in ways.items():
                before = dask.cpu_s()
                cost = merge(traces, folder / f"merged{way}", *words)
                is_dask = words == dask.words
                row = Row(ranks=count, num_bytes=num_bytes, workers=way, cost=cost,
                          worker_bytes=dask.peak_bytes() if is_dask else None,
                          worker_cpu_s=dask.cpu_s() - before if is_dask else 0.0)
                if way not in best or cost.wall_s < best[way].cost.wall_s:
                    best[way] = row
                print(f"{way}, run {number}: {cost.wall_s:.1f} s", flush=True)
    first, *others = (folder / f"merged{way}" for way in ways)
    for other in others:
        if not same(first, other):
            sys.exit(f"other bytes: {other}")
    return list(best.values())


def same(one: Path, other: Path) -> bool:
    """Whether two folders hold the same files."""
    names = [[path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file()]
             for folder in (one, other)]
    return names[0] == names[1] and all(filecmp.cmp(one / name, other / name, shallow=False) for name in names[0])


def long(num_ranks: int, gigabytes: float, folder: Path) -> list[str]:
    """Merging ranks of gigabytes, and `gzip -1` of the text of one."""
    first = write_large(folder / "long", num_ranks, 1000 * gigabytes)
    unpack = f'"{sys.executable}" -m isal.igzip -dc "{first}"'
    length = int(subprocess.run(["sh", "-c", f"{unpack} | wc -c"], capture_output=True, check=True).stdout)
    alone = timed(["sh", "-c", f"{unpack} | gzip -1 > /dev/null"])
    print(f"gzip -1: {length / alone.wall_s / 1e6:.0f} MB/s", flush=True)
    cost = merge(folder / "long", folder / "merged")
    rate, gzip_rate = num_ranks * length / cost.wall_s, length / alone.wall_s
    return [
        f"{num_ranks} ranks of {length / 1e9:.2f} GB of text ({first.stat().st_size / 1e6:.0f} MB gzipped, one file "
        f"under {num_ranks} names):",
        text.table(("program", "wall s", "CPU s", "others", "MB/s of text", "/ gzip -1", "peak MB"), [
            ["distprof merge", text.number(cost.wall_s, 1), text.number(cost.cpu_s, 1),
             text.number(cost.others_cores, 2), text.number(rate / 1e6, 0), text.number(rate / gzip_rate, 2),
             text.megabytes(cost.max_rss_bytes)],
            ["gzip -1 of one rank", text.number(alone.wall_s, 1), text.number(alone.cpu_s, 1),
             text.number(alone.others_cores, 2), text.number(gzip_rate / 1e6, 0), "1.00", "-"]])]


def table(rows: list[Row]) -> str:
    """A row a merge."""
    return text.table(HEAD, [[
        str(row.ranks), text.megabytes(row.num_bytes), row.workers, text.number(row.cost.wall_s, 1),
        text.number(1000 * row.cost.wall_s / row.ranks, 1), text.number(row.cost.others_cores, 2),
        text.megabytes(row.cost.max_rss_bytes),
        "-" if row.worker_bytes is None else text.megabytes(row.worker_bytes), text.number(row.core_hours, 4)]
        for row in rows])


def far(rows: list[Row]) -> str:
    """What the line through the last two merges says of many more ranks."""
    few, many = rows[-2:]
    core_hours, resident = (_line(few.ranks, one, many.ranks, other) for one, other in (
        (few.core_hours, many.core_hours), (few.cost.max_rss_bytes, many.cost.max_rss_bytes)))
    gigabytes = many.num_bytes / many.ranks * FAR / 1e9
    return (f"Extrapolated by the line through the last two rows, not measured: {FAR} ranks of that length "
            f"({gigabytes:.0f} GB of text) take {core_hours:.1f} core hours and {resident / 1e6:.0f} MB in the client.")


def _line(first: float, at_first: float, second: float, at_second: float) -> float:
    """Where the line through two points is at `FAR`."""
    return at_second + (at_second - at_first) / (second - first) * (FAR - second)


def ratios(rows: list[Row]) -> str:
    """Against threads."""
    first, *others = rows
    return "; ".join(f"{row.workers} takes {row.cost.wall_s / first.cost.wall_s:.3f} of the time of {first.workers}"
                     for row in others) + ". All wrote the same bytes."


def record(section: str, heading: str = HEADING) -> None:
    """Puts it under the heading of this benchmark, in place of what stood there."""
    before, _, behind = RESULTS.read_text().partition(f"\n{heading}\n")
    _, following, others = behind.partition("\n## ")
    RESULTS.write_text(f"{before.rstrip()}\n\n{heading}\n\n{section}\n{following}{others}")


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help="ranks, cluster, long (default: all)")
    parser.add_argument("--ranks", default="4,64,256,1024", help="numbers of ranks (default: %(default)s)")
    parser.add_argument("--megabytes", type=float, default=8, help="of text of each (default: %(default)s)")
    parser.add_argument("--long-ranks", type=int, default=8, help="ranks that are long (default: %(default)s)")
    parser.add_argument("--long-gigabytes", type=float, default=5, help="of text of each (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=3, help="merges of each; the fastest counts")
    parser.add_argument("--in", dest="folder", type=Path, help="where files are for the while: a disk with room")
    parser.add_argument("--record", action="store_true", help="put the tables into RESULTS.md")
    args = parser.parse_args()
    counts, parts = [*map(int, args.ranks.split(","))], args.parts or ["ranks", "cluster", "long"]
    found = [text.machine()]
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        if "ranks" in parts:
            rows = ranks(counts, args.megabytes, args.repeat, folder)
            found += [table(rows), *([far(rows)] if len(rows) > 1 else [])]
        if "cluster" in parts:
            rows = cluster(max(count for count in counts if count <= MOST_FOR_CLUSTER), args.megabytes, args.repeat,
                           folder)
            found += [table(rows), ratios(rows)]
        if "long" in parts:
            shutil.rmtree(folder / "ranks", ignore_errors=True)
            found += long(args.long_ranks, args.long_gigabytes, folder)
    section = "\n\n".join(found)
    print(section)
    if args.record:
        record(section)


if __name__ == "__main__":
    main()
