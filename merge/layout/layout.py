"""The layout of a rank: which of its events cannot be shown as they are, and what happens to each.

These are slices that overlap others of their thread, and incomplete arrows. A viewer shows a thread as nested slices:
a slice that partly overlaps another one moves to a side lane of the thread, or is cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from distprof.arrays import Array, Integers


def _nothing() -> Integers:
    return np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Events that change, by their number in the file (ascending), and what happens to each."""

    side_rows: Integers = field(default_factory=_nothing)
    """Events that move to a side lane: slices that overlap others, and the ends of arrows at these slices."""
    side_lanes: Integers = field(default_factory=_nothing)
    """Lane of each, from 1."""
    num_side: int = 0
    """Number of slices among them."""
    cut_rows: Integers = field(default_factory=_nothing)
    """Slices that are cut at their end."""
    cut_ns: Integers = field(default_factory=_nothing)
    """New duration of each."""
    moved_rows: Integers = field(default_factory=_nothing)
    """End events (phase E) of cut slices."""
    moved_ns: Integers = field(default_factory=_nothing)
    """New time of each."""
    hanging_rows: Integers = field(default_factory=_nothing)
    """Ends of arrows that are left out: they are in no slice or have no other end. A slice stays, without its arrow."""
    reused_rows: Integers = field(default_factory=_nothing)
    """Ends of arrows that get another id because an earlier arrow had theirs."""
    reused_ids: Integers = field(default_factory=_nothing)
    left_out_rows: Integers = field(default_factory=_nothing)
    """Begins and ends of slices that the selection leaves out."""
    num_left_out: int = 0
    """Number of events that the selection leaves out."""

    @property
    def num_lanes(self) -> int:
        """Maximum number of lanes of a thread, including its own."""
        return int(self.side_lanes.max(initial=0)) + 1


def by_row(parts: Sequence[tuple[Integers, Array]]) -> tuple[Integers, Integers]:
    """Joins event numbers and their values, sorted by number."""
    rows, values = (np.concatenate([np.empty(0, np.int64), *(part[index] for part in parts)]) for index in range(2))
    order = np.argsort(rows, kind="stable")
    return rows[order], values[order]
