"""Goes over the slices of a rank by thread and time: gives them lanes, and finds those that ends of arrows are in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from distprof.arrays import Array, Integers
from distprof.merge.layout.begin_end import ambiguous_places, in_places
from distprof.merge.layout.layout import by_row
from distprof.merge.layout.sorted_rows import SortedRows
from distprof.merge.scan.engine import ENGINE
from distprof.merge.scan.scanned_columns import AROUND, FOLLOWING

TOLERANCE_NS = 1000
"""Slices that stick out of each other by no more are cut: rounding, not another order of things."""
MAX_LANES = 16
ROWS = {"thread": np.int32, "start_ns": np.int64, "turn": np.int64, "row": np.int64}
"""What is gone over, by all of these columns. The row of a slice is the number of its event, that of an end of an arrow
counts the ends."""
PAIR, END_WITHIN, END_BEFORE = 1, 2, 3
"""Turns among what starts together: slices with their duration, negative, as the longest are first; then begins of
slices that are written as two events, by their row, as Perfetto begins them; then ends of arrows that belong to the
slice around them, or to the one that follows."""


class Pairs(NamedTuple):
    """Slices that are written as two events, by the row of the first."""

    row: Any
    """Event number of the start."""
    start_ns: Any
    duration_ns: Any
    thread: Any
    end: Any
    """Event number of the end, -1 where there is none."""
    left_out: Any
    """Begins and ends that the selection leaves out, ascending."""


class Nested(NamedTuple):
    """What becomes of slices that cannot stay as they are, by row."""

    side_rows: Any
    side_lanes: Any
    cut_rows: Any
    cut_ns: Any
    """New durations."""
    end_lanes: Any
    """Lane of the slice that each end of an arrow is at, -1 without one."""


def nest(rows: SortedRows, pairs: Pairs, num_ends: int) -> Nested:
    """Goes over the slices of a rank.

    Args:
        rows: `ROWS`; slices that are written as two events are added here.
        pairs: These.
        num_ends: How many ends of arrows there are.
    """
    # of what happens in one nanosecond Perfetto may read the E before the B, and would see no end
    empty = pairs.row[pairs.duration_ns == 0]
    pairs = pairs._replace(duration_ns=np.maximum(pairs.duration_ns, 1))
    if len(pairs.row):
        rows.add(pairs.thread, pairs.start_ns, np.full(len(pairs.row), PAIR), pairs.row)
    found = _Found(num_ends)
    lanes = ENGINE.new_lanes(tolerance=TOLERANCE_NS, max_lanes=MAX_LANES)
    for thread, start_ns, turn, row in rows.blocks():
        laid = lanes.add(row, thread, start_ns, _durations(turn, row, pairs))
        found.add(row, turn, laid.lane, laid.cut)
        found.add_late(laid.late)
    cut_rows, cut_ns = found.cuts()
    if len(pairs.row):
        alone = np.setdiff1d(empty, cut_rows)
        found.cut(alone, np.ones(len(alone), np.int64))
        _end_before_begin(rows, pairs, found)
        cut_rows, cut_ns = found.cuts()
    return Nested(*found.sides(), cut_rows, cut_ns, found.end_lanes)


def _durations(turn: Integers, row: Integers, pairs: Pairs) -> Integers:
    """As engines take them."""
    durations = np.negative(turn)
    if int(turn.max(initial=0)) > 0:
        durations[turn == END_WITHIN] = AROUND
        durations[turn == END_BEFORE] = FOLLOWING
        is_pair = turn == PAIR
        durations[is_pair] = pairs.duration_ns[np.searchsorted(pairs.row, row[is_pair])]
    return durations


class _Found:
    """Lanes and cuts so far."""

    def __init__(self, num_ends: int) -> None:
        self.end_lanes = np.full(num_ends, -1, np.int8)
        self._sides: list[tuple[Any, Any]] = []
        self._cuts: list[tuple[Any, Any]] = []

    def add(self, row: Integers, turn: Integers, lane: Array, cut: Integers) -> None:
        asks = np.flatnonzero(turn > PAIR)
        self.end_lanes[row.take(asks)] = lane.take(asks)
        beside = np.flatnonzero((lane > 0) & (turn <= PAIR))
        self._sides.append((row.take(beside), lane.take(beside)))
        less = np.flatnonzero(cut >= 0)
        self.cut(row.take(less), cut.take(less))

    def add_late(self, late: Array) -> None:
        of_ends = late["lane"] >= 0
        self.end_lanes[late["row"][of_ends]] = late["lane"][of_ends]
        self.cut(late["row"][~of_ends], late["cut"][~of_ends])

    def cut(self, row: Integers, duration_ns: Integers) -> None:
        """Gives new durations to slices."""
        if len(row):
            self._cuts.append((row, duration_ns))

    def cuts(self) -> tuple[Integers, Integers]:
        """Row of each slice that is cut, ascending, and its duration: of several the last."""
        rows, cut_ns = by_row(self._cuts)
        is_last = np.ones(len(rows), bool)
        is_last[:-1] = rows[1:] != rows[:-1]
        self._cuts = [(rows[is_last], cut_ns[is_last])]
        return self._cuts[0]

    def sides(self) -> tuple[Integers, Integers]:
        return by_row(self._sides)


def _end_before_begin(rows: SortedRows, pairs: Pairs, found: _Found) -> None:
    """Cuts a nanosecond from what ends when a B begins that stands before the E in the file."""
    cut_rows, cut_ns = found.cuts()
    ends = pairs.start_ns + _shown(pairs.row, pairs.duration_ns, cut_rows, cut_ns)
    places = ambiguous_places(pairs.thread, pairs.start_ns, ends, pairs.row, pairs.end)
    if not places:
        return
    for thread, start_ns, duration_ns, row in _slices(rows, pairs):
        shown = _shown(row, duration_ns, cut_rows, cut_ns)
        there = in_places(thread, start_ns + shown, places)
        there = there[shown[there] > 0]
        found.cut(row[there], shown[there] - 1)


def _slices(rows: SortedRows, pairs: Pairs) -> Iterator[tuple[Any, Any, Any, Any]]:
    for thread, start_ns, turn, row in rows.parts():
        there = np.flatnonzero(turn <= PAIR)
        yield thread[there], start_ns[there], _durations(turn[there], row[there], pairs), row[there]


def _shown(row: Integers, duration_ns: Integers, cut_rows: Integers, cut_ns: Integers) -> Integers:
    """The durations of slices, as far as they are cut already."""
    if not len(cut_rows):
        return duration_ns
    place = np.minimum(np.searchsorted(cut_rows, row), len(cut_rows) - 1)
    return np.where(cut_rows[place] == row, cut_ns[place], duration_ns)
