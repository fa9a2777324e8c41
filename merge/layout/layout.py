"""The layout of a rank: which of its events cannot be shown as they are, and what becomes of each.

These are slices that overlap others of their thread, and arrows that lead nowhere. A viewer shows a thread as slices
within slices: what partly overlaps goes to a lane beside the thread, or is cut.
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
    """Numbers of events, counted through the file and ascending, with what becomes of each."""

    side_rows: Integers = field(default_factory=_nothing)
    """They leave their lane: slices that overlap another one there, and ends of arrows that belong to these."""
    side_lanes: Integers = field(default_factory=_nothing)
    """Lane of each, from 1 on."""
    num_side: int = 0
    """Slices among them."""
    cut_rows: Integers = field(default_factory=_nothing)
    """Slices whose end is cut."""
    cut_ns: Integers = field(default_factory=_nothing)
    """Their new durations."""
    moved_rows: Integers = field(default_factory=_nothing)
    """Ends (phase E) of such slices."""
    moved_ns: Integers = field(default_factory=_nothing)
    """Their new times."""
    hanging_rows: Integers = field(default_factory=_nothing)
    """Ends of arrows that are left out: they lie in no slice, or lack their other end. A slice stays, without arrow."""
    reused_rows: Integers = field(default_factory=_nothing)
    """Ends of arrows that need another id, since an arrow before had theirs."""
    reused_ids: Integers = field(default_factory=_nothing)
    left_out_rows: Integers = field(default_factory=_nothing)
    """Begins and ends that the selection leaves out."""
    num_left_out: int = 0
    """Events that the selection leaves out."""

    @property
    def num_lanes(self) -> int:
        """Lanes that threads need at most, their own included."""
        return int(self.side_lanes.max(initial=0)) + 1


def by_row(parts: Sequence[tuple[Integers, Array]]) -> tuple[Integers, Integers]:
    """Numbers of events and a value of each, joined, with the numbers in order."""
    rows, values = (np.concatenate([np.empty(0, np.int64), *(part[index] for part in parts)]) for index in range(2))
    order = np.argsort(rows, kind="stable")
    return rows[order], values[order]
