"""Shows `distprof memory` on one screen, and makes its data for `--json`, whose keys docs/memory.md describes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from distprof.contract.paths import FORMAT
from distprof.contract.problems import MemoryEndedEarly, Problem
from distprof.merge.memory.run_memory import BY, Peak, RunMemory, longest_unused
from distprof.merge.run.run_model import Run
from distprof.merge.text.problems import show_problems
from distprof.reporters.page import Page
from distprof.terminal import quoted_all
from distprof.units import counted, duration, percent, size

TOP = 20
TENSORS_SHOWN = 10
COLUMNS = ("at peak", "share", "tensors", "no longer used", "kept for backward", "allocated", "times")
"""Titles of the columns after those of `--by`."""
OF_A_TENSOR = ("size_bytes", "category", "op", "shapes", "module_path", "class_name", "phase", "name", "shape", "dtype",
               "made_ns", "freed_ns", "last_used_ns", "used_by", "unused_ns", "address")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryShown:
    """What the screen shows."""

    run: Run
    found: RunMemory
    table: pl.DataFrame
    """`grouped` allocations."""
    by: Sequence[str]
    top: int | None
    paths: Sequence[Path]
    problems: Sequence[Problem]
    lifetimes: bool


def render(shown: MemoryShown, page: Page) -> str:
    """Returns the screen as text."""
    _peaks(shown, page)
    _groups(shown, page)
    _tensors(shown, page)
    if shown.lifetimes:
        _lifetimes(shown, page)
    if shown.found.num_bad:
        page.line(f"{counted(shown.found.num_bad, 'event')} without size, address or time skipped")
    if shown.run.remarks or shown.problems:
        show_problems(shown.run.remarks, shown.problems, page)
        page.line()
    page.line(f"Next: distprof memory --by module --by op {quoted_all(shown.paths)}")
    return page.text()


def _peaks(shown: MemoryShown, page: Page) -> None:
    held = _held(shown.found.held)
    rows = [[str(peak.rank), peak.device, size(peak.peak_bytes), str(len(peak.alive)), size(_named(peak)),
             _or_dash(peak.before_bytes), size(peak.unknown_bytes), _or_dash(peak.reserved_bytes),
             _or_dash(peak.unused_bytes), held.get((peak.rank, peak.device), "-")] for peak in shown.found.peaks]
    header = ["rank", "device", "peak", "tensors", "known", "from before", "unknown", "reserved", "no longer used",
              "held at the start"]
    page.table(header, rows, left=2)
    if any(peak.device == "cpu" for peak in shown.found.peaks):
        page.line("on a CPU, the peak counts only allocations since the recording started")
    page.line()


def _held(held: pl.DataFrame) -> dict[tuple[int, str], str]:
    found: dict[tuple[int, str], list[str]] = {}
    for rank, device, category, num_bytes in held.select("rank", "device", "category", "size_bytes").iter_rows():
        found.setdefault((rank, device), []).append(f"{category.replace('_', ' ')} {size(num_bytes)}")
    return {of: ", ".join(parts) for of, parts in found.items()}


def _named(peak: Peak) -> int:
    return int(peak.alive["size_bytes"].sum())


def _groups(shown: MemoryShown, page: Page) -> None:
    table = shown.table.head(shown.top or TOP)
    total = int(shown.table["peak_bytes"].sum())
    looked = any(peak.unused_bytes is not None for peak in shown.found.peaks)
    page.table([*shown.by, *COLUMNS], [
        [*(_key(row[BY[one]]) for one in shown.by), size(row["peak_bytes"]),
         percent(row["peak_bytes"] / total) if total else "-", str(row["peak_tensors"]),
         size(row["unused_bytes"]) if looked else "-", size(row["kept_bytes"]), size(row["allocated_bytes"]),
         str(row["allocations"])] for row in table.iter_rows(named=True)], left=len(shown.by))
    more = len(shown.table) - len(table)
    if more > 0:
        page.line(f"{counted(more, 'more row')}: --top {len(shown.table)} shows all")
    page.line()


def _tensors(shown: MemoryShown, page: Page) -> None:
    """Prints the largest tensors on the device with the highest peak."""
    peak = max(shown.found.peaks, key=lambda one: one.peak_bytes)
    rows = peak.alive.head(shown.top or TENSORS_SHOWN)
    page.line(f"largest at the peak of rank {peak.rank} ({peak.device}):")
    page.table(["bytes", "category", "module", "allocated by", "phase", "name", "shape"], [
        [size(row["size_bytes"]), _key(row["category"]), _key(row["module_path"]), _key(row["op"]), _key(row["phase"]),
         _key(row["name"]), _key(row["shape"])] for row in rows.iter_rows(named=True)], left=0)
    page.line()


def _lifetimes(shown: MemoryShown, page: Page) -> None:
    """Prints tensors by their size times the time for which they were kept unused."""
    rows, begin = longest_unused(shown.found.rows, shown.top or TENSORS_SHOWN), _begin(shown.found.rows)
    page.line("kept longest after their last use, by size times time:")
    page.table(["rank", "module", "category", "allocated by", "last used by", "bytes", "made", "last used", "freed",
                "kept unused"], [
        [str(row["rank"]), _key(row["module_path"]), _key(row["category"]), _key(row["op"]), _key(row["used_by"]),
         size(row["size_bytes"]), *(f"+{duration(row[name] - begin[row['rank']])}"
                                    for name in ("made_ns", "last_used_ns", "freed_ns")),
         duration(row["unused_ns"])] for row in rows.iter_rows(named=True)], left=5)
    page.line()


def _begin(rows: pl.DataFrame) -> dict[int, int]:
    return dict(rows.group_by("rank").agg(pl.col("made_ns").min()).iter_rows())


def _or_dash(num_bytes: int | None) -> str:
    return "-" if num_bytes is None else size(num_bytes)


def _key(value: object) -> str:
    return "-" if value is None else "(root)" if value == "" else str(value)


def memory_data(run: Run, found: RunMemory, table: pl.DataFrame, top: int | None) -> dict[str, Any]:
    """Returns the data of the command.

    Args:
        run: The run.
        found: Its allocations.
        table: `grouped` allocations.
        top: Number of rows, and of tensors per peak; None: all rows, and `TENSORS_SHOWN` tensors.
    """
    return {
        "format": FORMAT, "kind": "memory", "ranks": sorted({peak.rank for peak in found.peaks}),
        "world_size": run.world_size, "peaks": [_peak(peak, top or TENSORS_SHOWN) for peak in found.peaks],
        "held_before": found.held.to_dicts(), "left_out": {"events_without_size": found.num_bad},
        "ended_early": [{"rank": one.rank, "step": one.step} for one in found.problems
                        if isinstance(one, MemoryEndedEarly)],
        "groups": table.rename({"module_path": "module", "class_name": "class"}, strict=False).head(
            top or len(table)).to_dicts()}


def _peak(peak: Peak, top: int) -> dict[str, Any]:
    return {"rank": peak.rank, "device": peak.device, "time_ns": peak.time_ns, "peak_bytes": peak.peak_bytes,
            "before_bytes": peak.before_bytes, "unknown_bytes": peak.unknown_bytes, "unused_bytes": peak.unused_bytes,
            "reserved_bytes": peak.reserved_bytes, "num_tensors": len(peak.alive),
            "tensors": peak.alive.select(OF_A_TENSOR).head(top).to_dicts()}
