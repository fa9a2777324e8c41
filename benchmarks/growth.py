"""Measures how time and memory of `distprof merge` grow with what is in a trace: slices, arrows, threads, names.

    python benchmarks/growth.py [KIND=COUNT ...] [--in FOLDER] [--record]

Each trace is of one rank, made up and written to disk as it comes: `slices=18000000` is 2 GB. Without arguments each
kind is measured with a million and a quarter of that. Memory is what the merge has for itself alone (RssAnon, looked at
every 10 ms) and the largest resident set (VmHWM), in which pages of files are too. `--record` puts the table into
RESULTS.md.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import merge_text as text
from processes import Failed

from distprof.units import size

RESULTS = Path(__file__).parent / "RESULTS.md"
HEADING = "## growth.py"
HEAD = ("what there is many of", "number", "input MB", "wall s", "CPU s", "CPU us each", "own MB", "bytes each",
        "VmHWM MB")
SAMPLE_S = 0.01
MILLION = 1_000_000


def slices(count: int) -> Iterator[str]:
    """Eight calls within each other, and two kernels, again and again."""
    for first in range(0, count, 10):
        at = 10 * first
        for depth in range(8):
            yield (f'{{"ph":"X","cat":"cpu_op","name":"aten::op{depth}","pid":7,"tid":{7 + depth % 2},'
                   f'"ts":{at + depth},"dur":{80 - 8 * depth}.5,"args":{{"External id":{first + depth}}}}}')
        for stream in range(2):
            yield (f'{{"ph":"X","cat":"kernel","name":"kernel{stream}","pid":0,"tid":{7 + stream},"ts":{at + 50}.25,'
                   f'"dur":40.5,"args":{{"stream":{7 + stream}}}}}')


def arrows(count: int, *, form: str = "{}") -> Iterator[str]:
    """From a launch to a kernel."""
    for number in range(count):
        at, arrow = 10 * number, f'"id":{form.format(number)},"cat":"ac2g","name":"ac2g"'
        yield f'{{"ph":"X","name":"launch","pid":7,"tid":7,"ts":{at},"dur":5}}'
        yield f'{{"ph":"s",{arrow},"pid":7,"tid":7,"ts":{at}}}'
        yield f'{{"ph":"X","name":"kernel","pid":0,"tid":7,"ts":{at + 7},"dur":6}}'
        yield f'{{"ph":"f","bp":"e",{arrow},"pid":0,"tid":7,"ts":{at + 7}}}'


def hexadecimal(count: int) -> Iterator[str]:
    """Arrows whose ids are texts."""
    return arrows(count, form='"0x{:x}"')


def overlapping(count: int) -> Iterator[str]:
    """Each slice sticks out of the one before."""
    for number in range(count):
        yield f'{{"ph":"X","name":"a","pid":7,"tid":7,"ts":{10 * number},"dur":15}}'


def begun(count: int) -> Iterator[str]:
    """Slices that are written as two events."""
    for number in range(count):
        yield f'{{"ph":"B","name":"a","pid":7,"tid":7,"ts":{10 * number}}}'
        yield f'{{"ph":"E","pid":7,"tid":7,"ts":{10 * number + 5}}}'


def threads(count: int) -> Iterator[str]:
    """Each with a name and a slice."""
    for number in range(count):
        yield f'{{"ph":"M","name":"thread_name","pid":7,"tid":{number + 100},"args":{{"name":"worker {number}"}}}}'
        yield f'{{"ph":"X","name":"a","pid":7,"tid":{number + 100},"ts":{number},"dur":1}}'


def processes(count: int) -> Iterator[str]:
    """Each with a name, a label, and a slice on a thread with its number."""
    for pid in range(100, count + 100):
        yield f'{{"ph":"M","name":"process_name","pid":{pid},"args":{{"name":"python"}}}}'
        yield f'{{"ph":"M","name":"process_labels","pid":{pid},"args":{{"labels":"GPU {pid}"}}}}'
        yield f'{{"ph":"X","name":"a","pid":{pid},"tid":{pid},"ts":{pid},"dur":1}}'


def counters(count: int) -> Iterator[str]:
    """Processes that have the counters of others, by their label."""
    for number in range(count):
        yield f'{{"ph":"M","name":"process_labels","pid":{number},"args":{{"labels":"GPU {number}"}}}}'
        yield f'{{"ph":"C","name":"a","pid":"GPU {number} Counters","tid":7,"ts":{number},"args":{{"x":1}}}}'


def names(count: int) -> Iterator[str]:
    """Slices that each have a name of their own."""
    for number in range(count):
        yield f'{{"ph":"X","name":"a name of its own {number}","pid":7,"tid":7,"ts":{number},"dur":1}}'


KINDS: dict[str, tuple[str, Callable[[int], Iterator[str]]]] = {
    "slices": ("slices", slices), "overlapping": ("slices that all overlap the next", overlapping),
    "begun": ("slices as begin and end", begun), "arrows": ("arrows", arrows),
    "hexadecimal": ("arrows whose ids are texts", hexadecimal), "names": ("different names", names),
    "threads": ("threads", threads), "processes": ("processes", processes),
    "counters": ("processes of counters", counters)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """What a merge of one trace cost."""

    kind: str
    count: int
    input_bytes: int
    wall_s: float
    cpu_s: float
    own_bytes: int
    """Memory that is in no file, at most."""
    resident_bytes: int


def write(kind: str, count: int, path: Path) -> None:
    """Writes a trace without ever holding it."""
    with path.open("w", buffering=1 << 20) as file:
        file.write('{"traceEvents":[\n')
        for number, event in enumerate(KINDS[kind][1](count)):
            file.write(f",\n{event}" if number else event)
        file.write("\n]}\n")


def measure(kind: str, count: int, folder: Path) -> Growth:
    """Merges a trace of so many.

    Raises:
        Failed: The merge did not end with 0.
    """
    traces, merged = folder / f"{kind}{count}", folder / "merged"
    trace = traces / "rank0_trace.json"
    traces.mkdir()
    write(kind, count, trace)
    own = resident = 0
    begin = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "distprof", "merge", str(traces), "--out", str(merged)],
                               stdout=subprocess.DEVNULL)
    ended = 0
    while not ended:
        known = _memory(process.pid)
        own, resident = max(own, known.get("RssAnon", 0)), max(resident, known.get("VmHWM", 0))
        time.sleep(SAMPLE_S)
        ended, status, usage = os.wait4(process.pid, os.WNOHANG)
    wall_s, process.returncode = time.perf_counter() - begin, os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise Failed(f"exit code {process.returncode} for {count} {kind}")
    found = Growth(kind=kind, count=count, input_bytes=trace.stat().st_size, wall_s=wall_s,
                   cpu_s=usage.ru_utime + usage.ru_stime, own_bytes=own, resident_bytes=resident)
    for path in (traces, merged):
        shutil.rmtree(path)
    return found


def _memory(pid: int) -> dict[str, int]:
    """Sizes out of the status of a process, in bytes; nothing where it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    fields = (line.split() for line in lines)
    return {one[0].rstrip(":"): int(one[1]) * 1024 for one in fields if one[-1] == "kB"}


def table(found: list[Growth], empty: Growth) -> str:
    """A row a merge; what each takes is counted from a merge of nearly nothing."""
    return text.table(HEAD, [[
        KINDS[one.kind][0], str(one.count), text.megabytes(one.input_bytes), text.number(one.wall_s, 1),
        text.number(one.cpu_s, 1), text.number((one.cpu_s - empty.cpu_s) / one.count * 1e6, 2),
        text.megabytes(one.own_bytes), text.number((one.own_bytes - empty.own_bytes) / one.count, 0),
        text.megabytes(one.resident_bytes)]
        for one in found])


def record(section: str) -> None:
    """Puts it under the heading of this benchmark, in place of what stood there."""
    before, _, behind = RESULTS.read_text().partition(f"\n{HEADING}\n")
    _, heading, others = behind.partition("\n## ")
    RESULTS.write_text(f"{before.rstrip()}\n\n{HEADING}\n\n{section}\n{heading}{others}")


def wanted(arguments: list[str]) -> list[tuple[str, int]]:
    """Kinds and numbers."""
    if not arguments:
        return [(kind, count) for kind in KINDS for count in (MILLION // 4, MILLION)]
    return [(kind, int(count or MILLION)) for kind, _, count in (one.partition("=") for one in arguments)]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="KIND=COUNT", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--in", dest="folder", type=Path, help="where traces are for the while: a disk with room")
    parser.add_argument("--record", action="store_true", help="put the table into RESULTS.md")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        empty = measure("slices", 10, Path(folder))
        found = []
        for kind, count in wanted(args.kinds):
            found.append(measure(kind, count, Path(folder)))
            print(f"{kind} {count}: {found[-1].wall_s:.1f} s, {size(found[-1].own_bytes)}", flush=True)
    section = f"{text.machine()}\n\n{table(found, empty)}"
    print(section)
    if args.record:
        record(section)


if __name__ == "__main__":
    main()
