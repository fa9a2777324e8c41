"""The results of merge.py as Markdown tables; what was not measured is a dash."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from textwrap import fill

from measured import Result, count_slices
from processes import Cost

MERGES = ("program", "wall s", "median", "runs", "others", "CPU s", "MB/s", "peak MB", "trace MB", "slices lost",
          "time / ours", "memory / ours")
RANKS = ("ranks", "input MB", "wall s", "runs", "others", "ms per rank", "MB/s", "peak MB", "time per rank / 4 ranks",
         "memory / 4 ranks")
LOADS = ("loading", "s", "runs", "rows", "HTA / this")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One run of a loader."""

    seconds: float
    num_rows: int


def machine() -> str:
    """Date, processor, cores and versions."""
    packages = ", ".join(f"{name} {_version(name)}" for name in ("torch", "isal", "polars", "viztracer"))
    return fill(f"{date.today()}, {os.cpu_count()} cores ({_processor()}), Python {platform.python_version()}, "
                f"{packages}.", width=120)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def description(traces: list[Path]) -> str:
    """What is merged."""
    size = sum(trace.stat().st_size for trace in traces)
    return f"{len(traces)} ranks, {megabytes(size)} MB, {sum(map(count_slices, traces))} slices:"


def merges(results: list[Result]) -> str:
    """A row a program; the first is ours."""
    ours, slices = results[0], sum(map(count_slices, results[0].traces))
    return table(MERGES, [_merge(result, ours, slices) for result in results])


def _merge(result: Result, ours: Result, slices: int) -> list[str]:
    fastest, wall_s = result.fastest, result.wall_s
    return [
        result.contender.name, number(wall_s, 2), number(_median(result.costs), 2), str(len(result.costs)),
        number(fastest and fastest.others_cores, 1), number(fastest and fastest.cpu_s, 2),
        number(ratio(result.num_bytes / 1e6, wall_s), 0), megabytes(result.peak_bytes),
        megabytes(result.written_bytes), "-" if result.num_slices is None else str(slices - result.num_slices),
        number(ratio(wall_s, ours.wall_s), 2), number(ratio(result.peak_bytes, ours.peak_bytes), 2),
    ]


def ranks(few: Result, many: Result) -> str:
    """Ours on few and on many ranks."""
    return table(RANKS, [_ranks(result, few) for result in (few, many)])


def _ranks(result: Result, few: Result) -> list[str]:
    fastest, wall_s = result.fastest, result.wall_s
    each_s, few_each_s = ratio(wall_s, len(result.traces)), ratio(few.wall_s, len(few.traces))
    return [
        str(len(result.traces)), megabytes(result.num_bytes), number(wall_s, 2), str(len(result.costs)),
        number(fastest and fastest.others_cores, 1), number(None if each_s is None else each_s * 1e3, 0),
        number(ratio(result.num_bytes / 1e6, wall_s), 0),
        megabytes(result.peak_bytes), number(ratio(each_s, few_each_s), 2),
        number(ratio(result.peak_bytes, few.peak_bytes), 2),
    ]


def loads(by_name: dict[str, list[Load]], reference: list[Load] | None) -> str:
    """Ways to have all events in memory; the last column compares with `reference`."""
    if not by_name:
        return "nothing was measured"
    reference_s = _fastest(reference or [])
    return table(LOADS, [
        [name, number(_fastest(runs), 3), str(len(runs)), str(runs[0].num_rows),
         number(ratio(reference_s, _fastest(runs)), 1)]
        for name, runs in by_name.items()])


def _fastest(runs: list[Load]) -> float | None:
    return min((run.seconds for run in runs), default=None)


def failures(results: list[Result]) -> list[str]:
    """A line for everyone who did not get through."""
    return [f"{result.contender.name}: {result.failure}" for result in results if result.failure]


def _median(costs: list[Cost]) -> float | None:
    return median(cost.wall_s for cost in costs) if costs else None


def ratio(value: float | None, base: float | None) -> float | None:
    """None where one of them is unknown."""
    return None if value is None or not base else value / base


def number(value: float | None, digits: int) -> str:
    """A dash where it is unknown."""
    return "-" if value is None else f"{value:.{digits}f}"


def megabytes(num_bytes: int | None) -> str:
    """10^6 bytes."""
    return number(None if num_bytes is None else num_bytes / 1e6, 0)


def table(head: tuple[str, ...], rows: list[list[str]]) -> str:
    """Markdown that can be read as it is: words to the left, numbers to the right."""
    lines = [list(head), *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    padded = [[cell.rjust(width) if column else cell.ljust(width)
               for column, (cell, width) in enumerate(zip(line, widths, strict=True))] for line in lines]
    rule = ["-" * width if not column else "-" * (width - 1) + ":" for column, width in enumerate(widths)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (padded[0], rule, *padded[1:]))
