"""Measures merging of real traces of 4 ranks by distprof and other programs.

    python benchmarks/merge.py [--megabytes 120] [--ranks 64] [--repeat 15] [--peers] [--tracelens FOLDER]

The traces come from a gloo job under torch.profiler, with shapes and stacks (programs/traced_job.py): uncompressed JSON
in the page cache, recorded once. All programs run as separate processes, in turns, and repeatedly as long as the runs
of a program take at most a minute. Measured are

* merging: time and memory until a trace of all ranks is on disk; cat, igzip and gzip of the same bytes are limits;
* ranks: many ranks, which are links to the same files, compared with 4;
* loading: distprof's table of events, compared with HTA's parser (`--peers` installs it from PyPI, in its own
  environment).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from isal import igzip
from measuring.benchmark import Found, Option, Ratio, files, run
from measuring.contenders import OURS, PROGRAMS, Contender, Peers, contenders, traces_of
from measuring.processes import Cost, Failed, timed
from measuring.tables import megabytes, number, ratio, spread, table
from measuring.turns import COSTS, again, cells, cpu_s, empty

HEAD = ("program", "runs", *COSTS, "MB/s", "trace MB", "slices lost", "time / ours", "memory / ours")
RANKS = ("ranks", "input MB", "runs", *COSTS, "ms a rank", "MB/s")
LOADS = ("all events in memory", "s", "rows")
GZIP, IGZIP, VIZTRACER = "limit: gzip -1", "limit: igzip -1, all cores", "viztracer --combine"
SLICE = re.compile(rb'"ph":\s*"X"')
LONGEST_SLICE = 32
"""Maximum length of a match of `SLICE` in bytes."""
CHUNK = 1 << 20


@dataclass(slots=True, kw_only=True)
class Result:
    """All runs of a program on the same traces."""

    contender: Contender
    traces: list[Path]
    costs: list[Cost] = field(default_factory=list)
    written_bytes: int | None = None
    num_slices: int | None = None
    """Number of slices in the merged trace; None if unknown."""
    failure: str | None = None
    num_megabytes: float = field(init=False)
    """Size of the input in units of 10^6 bytes."""

    def __post_init__(self) -> None:
        self.num_megabytes = sum(trace.stat().st_size for trace in self.traces) / 1e6

    @property
    def wall_s(self) -> float | None:
        """Wall time of the fastest run in seconds."""
        return min((cost.wall_s for cost in self.costs), default=None)

    @property
    def peak_bytes(self) -> int | None:
        """Memory of the run that needed most."""
        return max((cost.max_rss_bytes for cost in self.costs), default=None)

    def run(self, folder: Path) -> None:
        """Runs the program once, unless it failed or its runs took too long; empties `folder` first."""
        if self.failure or not again([cost.wall_s for cost in self.costs]):
            return
        empty(folder)
        try:
            self.costs.append(timed(self.contender.command(self.traces, folder / self.contender.writes)))
        except Failed as error:
            self.failure = str(error)
            return
        if self.contender.trace:
            trace = folder / self.contender.trace
            self.written_bytes = trace.stat().st_size
            self.num_slices = self.num_slices or count_slices(trace)

    def cells(self, ours: Result, slices: int) -> list[str]:
        """Returns a row of `HEAD`."""
        lost = "-" if self.num_slices is None else str(slices - self.num_slices)
        return [self.contender.name, str(len(self.costs)), *cells(self.costs),
                number(ratio(self.num_megabytes, self.wall_s), 0), megabytes(self.written_bytes), lost,
                number(ratio(self.wall_s, ours.wall_s), 2), number(ratio(self.peak_bytes, ours.peak_bytes), 2)]

    def ranks_cells(self) -> list[str]:
        """Returns a row of `RANKS`."""
        each_s = ratio(self.wall_s, len(self.traces))
        return [str(len(self.traces)), number(self.num_megabytes, 0), str(len(self.costs)), *cells(self.costs),
                number(each_s and 1e3 * each_s, 0), number(ratio(self.num_megabytes, self.wall_s), 0)]


def count_slices(trace: Path) -> int:
    """Returns the number of slices in a Chrome trace, uncompressed or gzipped, by searching the text."""
    count, rest = 0, b""
    for chunk in _chunks(trace):
        text, end = rest + chunk, 0
        for match in SLICE.finditer(text):
            count, end = count + 1, match.end()
        rest = text[max(end, len(text) - LONGEST_SLICE):]
    return count


def _chunks(path: Path) -> Iterator[bytes]:
    with igzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        while chunk := file.read(CHUNK):
            yield chunk


def measure(args: argparse.Namespace) -> Found:
    """Returns the three tables."""
    traces = traces_of(args.folder, args.megabytes)
    peers = Peers(args.folder / "peers") if args.peers else None
    known, absent = contenders(peers, args.tracelens)
    results = [Result(contender=contender, traces=traces) for contender in known]
    ours = results[0]
    with files(args) as folder:
        many = Result(contender=OURS, traces=links(traces, args.ranks, folder / "links"))
        for _ in range(args.repeat):
            for result in (*results[1:], many, ours):
                result.run(folder / "output")
        for result in (ours, many):
            if result.failure:
                raise Failed(f"distprof merge: {result.failure}")
        loads = loading(ours, folder / "output" / OURS.writes / "events.parquet", peers, args.repeat)
    slices = sum(map(count_slices, traces))
    remarks = [*absent, *(f"{one.contender.name}: {one.failure}" for one in results if one.failure)]
    by_name = {one.contender.name: one for one in results if one.costs}
    gzip, igzip, viztracer = by_name[GZIP], by_name[IGZIP], by_name.get(VIZTRACER)
    return Found(
        text=[f"{len(traces)} ranks, {ours.num_megabytes:.0f} MB, {slices} slices:",
              table(HEAD, [one.cells(ours, slices) for one in results if one.costs]),
              f"{args.ranks} ranks, which are links to these files:",
              table(RANKS, [ours.ranks_cells(), many.ranks_cells()]), table(LOADS, loads),
              *map("Not measured: {}".format, remarks)],
        ratios={"4 ranks: CPU / gzip -1": Ratio(value=cpu_s(ours.costs) / cpu_s(gzip.costs)),
                "4 ranks: CPU / igzip -1": Ratio(value=cpu_s(ours.costs) / cpu_s(igzip.costs)),
                **({} if viztracer is None else {
                    "4 ranks: wall / viztracer": Ratio(value=_fastest_s(ours) / _fastest_s(viztracer))}),
                "a further rank: CPU / gzip -1": Ratio(value=_slope(ours, many) * len(traces) / cpu_s(gzip.costs))})


def _fastest_s(result: Result) -> float:
    return min(cost.wall_s for cost in result.costs)


def _slope(few: Result, many: Result) -> float:
    """Returns the processor time per additional rank."""
    return (cpu_s(many.costs) - cpu_s(few.costs)) / (len(many.traces) - len(few.traces))


def links(traces: list[Path], number_of_ranks: int, folder: Path) -> list[Path]:
    """Creates links to the same files under the names of more ranks."""
    folder.mkdir()
    found = [folder / f"rank{rank}_trace.json" for rank in range(number_of_ranks)]
    for rank, link in enumerate(found):
        link.symlink_to(traces[rank % len(traces)].resolve())
    return found


def loading(ours: Result, events: Path, peers: Peers | None, repeat: int) -> list[list[str]]:
    """Returns a row for each way to load all events into memory."""
    commands = {f"polars, our {events.name}": [sys.executable, str(PROGRAMS / "parquet_load.py"), str(events)]}
    if peers is not None:
        commands["HTA parse_traces"] = peers.hta(ours.traces)
    rows = []
    for name, command in commands.items():
        found = [json.loads(timed(command).printed.splitlines()[-1])]
        while len(found) < repeat and again([one["load_s"] for one in found]):
            found.append(json.loads(timed(command).printed.splitlines()[-1]))
        rows.append([name, spread([one["load_s"] for one in found], 3), str(found[0]["rows"])])
    ours_s = spread([cost.wall_s for cost in ours.costs], 3)
    return [*rows, [f"distprof merge, JSON to {events.name}", ours_s, rows[0][2]]]


if __name__ == "__main__":
    run(measure, __doc__,
        megabytes=Option(default=120.0, smallest=0.2, help="of a rank's trace (default: %(default)s)"),
        ranks=Option(default=64, smallest=8, help="that are merged as well (default: %(default)s)"),
        repeat=Option(default=15, smallest=1, help="runs of each program, at most (default: %(default)s)"),
        peers=Option(default=False, smallest=False, help="install and measure HTA, and TraceLens with --tracelens"),
        tracelens=Option(default="", smallest="", help="folder of a copy of its source"))
