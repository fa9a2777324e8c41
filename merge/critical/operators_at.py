"""Operators that run at given instants, as a timeline shows them."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from distprof.merge.activity.markers import COMMUNICATION
from distprof.merge.operators.timeline.nesting import Nesting


class OperatorsAt:
    """Operators of a rank by time; kernels, where it is seen on its device.

    Args:
        events: The rank's slices.
        on_device: True where kernels count.
    """

    def __init__(self, events: pl.DataFrame, *, on_device: bool) -> None:
        category = pl.col("category").str.to_lowercase()
        apart = ~pl.any_horizontal(pl.col("name").str.starts_with(prefix) for prefix in COMMUNICATION)
        shown = events.filter(category == ("kernel" if on_device else "cpu_op"), pl.col("duration_ns") > 0, apart)
        # where threads run operators at the same time, that of the busiest one is named
        busy = pl.col("duration_ns").sum().over("thread")
        shown = shown.with_columns(turn=busy.rank("dense", descending=True), thread=pl.col("thread").fill_null(""))
        shown = shown.sort("turn", "thread", "start_ns", "duration_ns", descending=[False, False, False, True])
        numbered = shown["thread"].rle_id()
        self._thread, self._names = numbered.to_numpy().astype(np.int64), shown["name"]
        self._starts = shown["start_ns"].to_numpy()
        self._ends = self._starts + shown["duration_ns"].to_numpy()
        self._parent = Nesting(self._thread, self._starts, self._ends, np.ones(len(shown), bool)).parent

    def edges(self, start_ns: int, end_ns: int) -> Any:
        """When operators begin and end within a window."""
        times = np.concatenate((self._starts, self._ends))
        return times[(times > start_ns) & (times < end_ns)]

    def at(self, times: Any) -> list[str | None]:
        """The innermost operator at each time."""
        found = np.full(len(times), -1, np.int64)
        for thread in range(int(self._thread.max(initial=-1)) + 1):
            first, stop = np.searchsorted(self._thread, (thread, thread + 1))
            row = first + np.searchsorted(self._starts[first:stop], times, "right") - 1
            row = np.where(row >= first, row, -1)
            while (over := (row >= 0) & (self._ends[row] <= times)).any():
                row = np.where(over, self._parent[row], row)
            found = np.where((found < 0) & (row >= 0), row, found)
        names = self._names.gather(np.maximum(found, 0)).to_list() if len(self._names) else [None] * len(times)
        return [name if row >= 0 else None for name, row in zip(names, found.tolist(), strict=True)]
