"""Draws activity of devices: counters of memory and of queues, and tensors from allocation to release."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

from distprof.merge.chrome.drawing.drawn import CounterValue, DrawnSlice, DrawnTensor, free_lanes
from distprof.merge.chrome.rank_plan import RankPlan
from distprof.merge.clock.model import RankClock
from distprof.merge.layout.event_selection import Windows
from distprof.merge.memory.run_memory import allocated_after
from distprof.merge.operators.timeline.memory_events import MemoryEvents
from distprof.merge.operators.timeline.rank_timeline import read_timeline
from distprof.merge.run.run_model import Rank
from distprof.merge.waits.queues import queue_depths
from distprof.units import size

ARGS = {"size_bytes": "bytes", "category": "category", "module_path": "module", "op": "allocated by", "phase": "phase",
        "shapes": "inputs", "name": "name", "shape": "shape", "dtype": "dtype", "address": "address"}
"""Column of an allocation -> its name in the viewer."""


class MemoryCounters(MemoryEvents):
    """Collects memory events while a rank is written."""

    def values(self, plan: RankPlan) -> Iterator[CounterValue]:
        """Yields the counters after each event, on the common clock."""
        events = self.frame(plan.survey.base_ns)
        windows = plan.selection.windows_ns
        for device in events["device"].unique().sort().to_list():
            rows = allocated_after(device, events.filter(device=device))
            if windows is not None:
                times = rows["time_ns"].to_numpy()
                rows = rows.filter(pl.Series(windows.meets(times, times), dtype=pl.Boolean))
            at = plan.clock.to_common(rows["time_ns"].to_numpy()).tolist()
            for at_ns, allocated, reserved in zip(at, rows["after"].to_list(), rows["reserved"].to_list(), strict=True):
                yield CounterValue(f"memory {device}", "allocated", at_ns, allocated)
                if reserved:
                    yield CounterValue(f"memory {device}", "reserved", at_ns, reserved)


def queue_values(plan: RankPlan) -> Iterator[CounterValue]:
    """Yields the queue counters of a rank after each change, on the common clock; this reads its trace once more."""
    timeline = read_timeline(Rank(number=plan.rank, folder=plan.trace.path.parent, trace=plan.trace))
    windows = plan.selection.windows_ns
    for stream, at_ns, depth in queue_depths(timeline):
        if windows is not None:
            kept = windows.meets(at_ns, at_ns)
            at_ns, depth = at_ns[kept], depth[kept]
        device, _, number = stream.partition(" ")
        for when, commands in zip(plan.clock.to_common(at_ns).tolist(), depth.tolist(), strict=True):
            yield CounterValue(f"queue GPU {device} stream {number}", "commands", when, commands)


def draw_tensors(rows: pl.DataFrame, clock: RankClock, last_ns: int, windows: Windows | None) -> list[DrawnTensor]:
    """Draws tensors of a rank.

    Args:
        rows: `allocations_of` of the rank; times are on its own clock.
        clock: Clock of the rank.
        last_ns: End of its recording on its own clock, up to which unfreed tensors are drawn.
        windows: Times that are drawn, on its own clock; None: all.
    """
    rows = rows.with_columns(end_ns=pl.col("freed_ns").fill_null(last_ns)).sort("made_ns", "first")
    if windows is not None:
        rows = rows.filter(pl.Series(windows.meets(rows["made_ns"].to_numpy(), rows["end_ns"].to_numpy()),
                                     dtype=pl.Boolean))
    starts, ends = (clock.to_common(rows[name].to_numpy()).tolist() for name in ("made_ns", "end_ns"))
    lanes = free_lanes(rows["device"].to_list(), starts, map(max, ends, (start + 1 for start in starts)))
    return [DrawnTensor(row["device"], lane, DrawnSlice(_name(row), start, end), _args(row))
            for row, lane, start, end in zip(rows.iter_rows(named=True), lanes, starts, ends, strict=True)]


def _name(row: dict[str, Any]) -> str:
    """Returns a name like `4.19 MB activation net.0`."""
    return " ".join(filter(None, (size(row["size_bytes"]), row["category"], row["module_path"] or row["op"])))


def _args(row: dict[str, Any]) -> dict[str, Any]:
    args = {shown: row[name] for name, shown in ARGS.items() if row[name] is not None}
    return args if row["freed_ns"] is not None else {**args, "freed": "not in the recording"}
