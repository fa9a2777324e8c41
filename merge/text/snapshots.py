"""Shows `distprof memory` of memory snapshots on one screen, and as data for `--json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from distprof.contract.paths import FORMAT
from distprof.merge.snapshot.device_memory import OutOfMemory
from distprof.merge.snapshot.run_snapshots import OneDevice, RunSnapshots
from distprof.merge.text.problems import show_problems
from distprof.reporters.page import Page
from distprof.terminal import quoted_all
from distprof.units import counted, duration, percent, size

TOP = 20
TENSORS_SHOWN = 10
FAILURES_SHOWN = 5
LEVELS = "▁▂▃▄▅▆▇█"
"""Characters of the chart, lowest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotsShown:
    """What the screen shows."""

    found: RunSnapshots
    by: Sequence[str]
    top: int | None
    named: bool
    """True if file names contain the ranks."""
    files: Mapping[int, Path]


def render(shown: SnapshotsShown, page: Page) -> str:
    """Returns the screen as text."""
    _peaks(shown, page)
    _now(shown, page)
    _groups(shown, page)
    one = max(shown.found.devices, key=lambda device: device.memory.peak_bytes)
    _timeline(one, page)
    _tensors(one, shown.top or TENSORS_SHOWN, page)
    _failures(shown, page)
    _doubts(shown, page)
    page.line(f"Next: distprof memory --by stack --top 5 {quoted_all(shown.files.values())}")
    return page.text()


def _place(one: OneDevice) -> list[str]:
    return [str(one.memory.rank), str(one.memory.device)]


def _peaks(shown: SnapshotsShown, page: Page) -> None:
    page.table(["rank", "device", "peak", "tensors", "reserved then", "at the start", "entries", "history"], [
        [*_place(one), size(one.memory.peak_bytes) if one.memory.entries else "-",
         str(one.num_alive), size(one.memory.peak_reserved_bytes), size(one.memory.before_bytes),
         str(one.memory.entries), _length(one)] for one in shown.found.devices], left=2)
    if any(not one.memory.entries for one in shown.found.devices):
        page.line("no history, so no peak: this shows what is alive now. Start a history with "
                  "torch.cuda.memory._record_memory_history()")
    page.line()


def _length(one: OneDevice) -> str:
    times = one.memory.timeline["time_us"]
    return duration(1000 * (times[-1] - times[0])) if len(times) else "-"


def _now(shown: SnapshotsShown, page: Page) -> None:
    page.line("when the snapshot was taken:")
    rows = [(one, one.memory.division) for one in shown.found.devices]
    page.table(["rank", "device", "reserved", "allocated", "rounding", "waiting for a stream", "free in split "
                "segments", "free segments", "largest free block"], [
        [*_place(one), size(now.reserved_bytes), size(now.allocated_bytes),
         size(now.allocated_bytes - now.requested_bytes), size(now.waiting_bytes), _part(now.split_bytes,
         now.reserved_bytes), size(now.releasable_bytes), size(now.largest_free_bytes)] for one, now in rows], left=2)
    page.line()


def _part(num_bytes: int, whole: int) -> str:
    return f"{size(num_bytes)} ({percent(num_bytes / whole)})" if whole else size(num_bytes)


def _groups(shown: SnapshotsShown, page: Page) -> None:
    groups, total = shown.found.groups, int(shown.found.groups["peak_bytes"].sum())
    table = groups.head(shown.top or TOP)
    rows = [[*(f"#{number}" if one == "stack" else _key(row[one]) for one in shown.by), size(row["peak_bytes"]),
             percent(row["peak_bytes"] / total) if total else "-", str(row["peak_tensors"]),
             size(row["allocated_bytes"]), str(row["allocations"]), size(row["alive_bytes"])]
            for number, row in enumerate(table.iter_rows(named=True), 1)]
    page.table([*shown.by, "at peak", "share", "tensors", "allocated", "times", "alive now"], rows, left=len(shown.by))
    if len(groups) > len(table):
        page.line(f"{counted(len(groups) - len(table), 'more row')}: --top {len(groups)} shows all")
    page.line()
    if "stack" in shown.by:
        _stacks(table["stack"].to_list(), page)


def _stacks(stacks: Sequence[str | None], page: Page) -> None:
    """Prints stacks, innermost frame first."""
    for number, stack in enumerate(stacks, 1):
        page.line(f"#{number}:" + ("" if stack else " no stack is known"))
        for frame in stack.splitlines() if stack else ():
            page.line(f"    {frame}")
    page.line()


def _key(value: object) -> str:
    return "-" if value is None else str(value)


def _timeline(one: OneDevice, page: Page) -> None:
    """Draws the maximum that was allocated in each interval of time."""
    points = one.memory.timeline
    most = one.memory.peak_bytes
    if len(points) < 2 or not most:
        return
    begin, end = points["time_us"][0], points["time_us"][-1]
    columns = min(page.width - 2, 80)
    heights, last = [0] * columns, 0
    of_column: dict[int, int] = {}
    for time_us, allocated in points.select("time_us", "allocated_bytes").iter_rows():
        column = (time_us - begin) * (columns - 1) // (end - begin)
        of_column[column] = max(of_column.get(column, 0), allocated)
    for column in range(columns):
        last = of_column.get(column, last)
        heights[column] = last
    page.line(f"allocated on device {one.memory.device} of rank {one.memory.rank}, up to {size(most)}, "
              f"in {duration(1000 * (end - begin))}:")
    page.line("".join(LEVELS[min(height * len(LEVELS) // most, len(LEVELS) - 1)] for height in heights))
    page.line()


def _tensors(one: OneDevice, top: int, page: Page) -> None:
    memory = one.memory
    when = "now" if not memory.entries else f"at the peak of device {memory.device}, rank {memory.rank}"
    page.line(f"largest {when}:")
    page.table(["bytes", "line", "made", "freed"], [
        [size(row["size_bytes"]), _key(row["line"]), _when(row["made_us"], one, "before"),
         _when(row["freed_us"], one, "-")] for row in one.largest.head(top).iter_rows(named=True)], left=0)
    page.line()


def _when(time_us: int | None, one: OneDevice, otherwise: str) -> str:
    times = one.memory.timeline["time_us"]
    return otherwise if time_us is None or not len(times) else f"+{duration(1000 * (time_us - times[0]))}"


def _failures(shown: SnapshotsShown, page: Page) -> None:
    for one in shown.found.devices:
        for failure in one.memory.failures[-FAILURES_SHOWN:]:
            page.line(f"out of memory: rank {one.memory.rank}, device {one.memory.device}{_at(failure, one)}: "
                      f"{size(failure.asked_bytes)} requested by {failure.line or 'an unknown line'}; allocated "
                      f"{size(failure.allocated_bytes)}, reserved {size(failure.reserved_bytes)}, the device had "
                      f"{size(failure.device_free_bytes)} free")


def _at(failure: OutOfMemory, one: OneDevice) -> str:
    return f", at {_when(failure.time_us, one, '')}" if failure.time_us is not None else ""


def _doubts(shown: SnapshotsShown, page: Page) -> None:
    if not shown.named:
        page.line("file names do not contain ranks: ranks are numbered in the order of the file names")
    for one in shown.found.devices:
        if one.memory.unseen:
            page.line(f"rank {one.memory.rank}, device {one.memory.device}: the history lacks the end of "
                      f"{counted(one.memory.unseen, 'allocation')}, so peaks may be too high")
    others = sum(one.num_other for one in shown.found.devices)
    if others:
        page.line(f"{counted(others, 'entry') if others == 1 else f'{others} entries'} of an unknown kind skipped")
    if shown.found.problems:
        show_problems((), shown.found.problems, page)
        page.line()


def snapshots_data(found: RunSnapshots, top: int | None) -> dict[str, Any]:
    """Returns the same as data; `top` groups, or all if it is None."""
    return {"format": FORMAT, "kind": "memory_snapshot",
            "ranks": sorted({one.memory.rank for one in found.devices}),
            "devices": [_device(one) for one in found.devices],
            "groups": found.groups.head(top or len(found.groups)).to_dicts()}


def _device(one: OneDevice) -> dict[str, Any]:
    memory = one.memory
    plain = {name: getattr(memory, name) for name in (
        "rank", "device", "peak_bytes", "peak_us", "peak_reserved_bytes", "before_bytes", "entries", "unseen")}
    return {**plain, "num_tensors": one.num_alive, "now": asdict(memory.division),
            "failures": [asdict(failure) for failure in memory.failures], "settings": one.settings,
            "unknown_entries": one.num_other, "timeline": memory.timeline.to_dicts(),
            "tensors": one.largest.drop("is_at_peak", "is_alive").to_dicts()}
