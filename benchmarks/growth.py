"""Measures how time and memory of `distprof merge` grow with the contents of a trace: slices, arrows, threads, names.

    python benchmarks/growth.py [--kinds slices arrows ...] [--numbers 250000 1000000]

Each made-up trace has one rank and is streamed to disk: 18 million slices are 2 GB. Memory is shown as anonymous memory
of the merge (RssAnon, sampled every 10 ms) and as peak resident set size (VmHWM), which includes pages of files. Each
trace is merged once.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from measuring.benchmark import DISTPROF, Found, Option, files, run
from measuring.processes import Cost, own_bytes, timed
from measuring.tables import megabytes, number, table

HEAD = ("what there is many of", "number", "input MB", "wall s", "CPU s", "CPU us each", "own MB", "bytes each",
        "VmHWM MB")
MILLION = 1_000_000


def slices(count: int) -> Iterator[str]:
    """Yields groups of eight nested calls and two kernels."""
    for first in range(0, count, 10):
        at = 10 * first
        for depth in range(8):
            yield (f'{{"ph":"X","cat":"cpu_op","name":"aten::op{depth}","pid":7,"tid":{7 + depth % 2},'
                   f'"ts":{at + depth},"dur":{80 - 8 * depth}.5,"args":{{"External id":{first + depth}}}}}')
        for stream in range(2):
            yield (f'{{"ph":"X","cat":"kernel","name":"kernel{stream}","pid":0,"tid":{7 + stream},"ts":{at + 50}.25,'
                   f'"dur":40.5,"args":{{"stream":{7 + stream}}}}}')


def arrows(count: int, *, form: str = "{}") -> Iterator[str]:
    """Yields arrows from launches to kernels."""
    for place in range(count):
        at, arrow = 10 * place, f'"id":{form.format(place)},"cat":"ac2g","name":"ac2g"'
        yield f'{{"ph":"X","name":"launch","pid":7,"tid":7,"ts":{at},"dur":5}}'
        yield f'{{"ph":"s",{arrow},"pid":7,"tid":7,"ts":{at}}}'
        yield f'{{"ph":"X","name":"kernel","pid":0,"tid":7,"ts":{at + 7},"dur":6}}'
        yield f'{{"ph":"f","bp":"e",{arrow},"pid":0,"tid":7,"ts":{at + 7}}}'


def hexadecimal(count: int) -> Iterator[str]:
    """Yields arrows whose ids are strings."""
    return arrows(count, form='"0x{:x}"')


def overlapping(count: int) -> Iterator[str]:
    """Yields slices that each end after the start of the next one."""
    for place in range(count):
        yield f'{{"ph":"X","name":"a","pid":7,"tid":7,"ts":{10 * place},"dur":15}}'


def begun(count: int) -> Iterator[str]:
    """Yields slices as pairs of begin and end events."""
    for place in range(count):
        yield f'{{"ph":"B","name":"a","pid":7,"tid":7,"ts":{10 * place}}}'
        yield f'{{"ph":"E","pid":7,"tid":7,"ts":{10 * place + 5}}}'


def threads(count: int) -> Iterator[str]:
    """Yields threads with a name and a slice each."""
    for place in range(count):
        yield f'{{"ph":"M","name":"thread_name","pid":7,"tid":{place + 100},"args":{{"name":"worker {place}"}}}}'
        yield f'{{"ph":"X","name":"a","pid":7,"tid":{place + 100},"ts":{place},"dur":1}}'


def processes(count: int) -> Iterator[str]:
    """Yields processes with a name, a label, and a slice on a thread with the same number."""
    for pid in range(100, count + 100):
        yield f'{{"ph":"M","name":"process_name","pid":{pid},"args":{{"name":"python"}}}}'
        yield f'{{"ph":"M","name":"process_labels","pid":{pid},"args":{{"labels":"GPU {pid}"}}}}'
        yield f'{{"ph":"X","name":"a","pid":{pid},"tid":{pid},"ts":{pid},"dur":1}}'


def counters(count: int) -> Iterator[str]:
    """Yields processes, and counters that refer to them by their labels."""
    for place in range(count):
        yield f'{{"ph":"M","name":"process_labels","pid":{place},"args":{{"labels":"GPU {place}"}}}}'
        yield f'{{"ph":"C","name":"a","pid":"GPU {place} Counters","tid":7,"ts":{place},"args":{{"x":1}}}}'


def names(count: int) -> Iterator[str]:
    """Yields slices with different names."""
    for place in range(count):
        yield f'{{"ph":"X","name":"a name of its own {place}","pid":7,"tid":7,"ts":{place},"dur":1}}'


KINDS: dict[str, tuple[str, Callable[[int], Iterator[str]]]] = {
    "slices": ("slices", slices), "overlapping": ("slices that all overlap the next", overlapping),
    "begun": ("slices as begin and end", begun), "arrows": ("arrows", arrows),
    "hexadecimal": ("arrows whose ids are texts", hexadecimal), "names": ("different names", names),
    "threads": ("threads", threads), "processes": ("processes", processes),
    "counters": ("processes of counters", counters)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Cost of merging one trace."""

    kind: str
    count: int
    input_bytes: int
    cost: Cost

    def cells(self, empty: Growth) -> list[str]:
        """Returns a row of the table; costs per event are relative to a merge of an almost empty trace."""
        cost = self.cost
        return [KINDS[self.kind][0], str(self.count), megabytes(self.input_bytes), number(cost.wall_s, 1),
                number(cost.cpu_s, 1), number((cost.cpu_s - empty.cost.cpu_s) / self.count * 1e6, 2),
                megabytes(cost.sampled_bytes),
                number((cost.sampled_bytes - empty.cost.sampled_bytes) / self.count, 0), megabytes(cost.max_rss_bytes)]


def write(kind: str, count: int, path: Path) -> None:
    """Streams a trace to a file."""
    with path.open("w", buffering=1 << 20) as file:
        file.write('{"traceEvents":[\n')
        for place, event in enumerate(KINDS[kind][1](count)):
            file.write(f",\n{event}" if place else event)
        file.write("\n]}\n")


def merged(kind: str, count: int, folder: Path) -> Growth:
    """Merges a trace with `count` items of a kind.

    Raises:
        Failed: The exit code of the merge is not 0.
    """
    traces, out = folder / f"{kind}{count}", folder / "merged"
    trace = traces / "rank0_trace.json"
    traces.mkdir()
    write(kind, count, trace)
    cost = timed([*DISTPROF, "merge", "--force", str(traces), "--out", str(out)], own_bytes)
    found = Growth(kind=kind, count=count, input_bytes=trace.stat().st_size, cost=cost)
    shutil.rmtree(traces)
    return found


def measure(args: argparse.Namespace) -> Found:
    """Returns a table with a row per merge."""
    with files(args) as folder:
        empty = merged("slices", 10, folder)
        found = [merged(kind, count, folder) for kind in args.kinds for count in args.numbers]
    return Found(text=[table(HEAD, [one.cells(empty) for one in found])])


if __name__ == "__main__":
    run(measure, __doc__,
        kinds=Option(default=[*KINDS], smallest=["slices", "begun", "counters"], help=f"of {', '.join(KINDS)}"),
        numbers=Option(default=[MILLION // 4, MILLION], smallest=[100], help="of each kind (default: %(default)s)"))
