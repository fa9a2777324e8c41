"""Assigns lanes to the slices of a rank in order of thread and time, and finds the slices at the ends of arrows."""

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
"""Overlaps of at most this length are cut: they are rounding errors."""
MAX_LANES = 16
ROWS = {"thread": np.int32, "start_ns": np.int64, "turn": np.int64, "row": np.int64}
"""Columns, all part of the sort key. The row of a slice is its event number, the row of an arrow's end is the number of
the end."""
PAIR, END_WITHIN, END_BEFORE = 1, 2, 3
"""Values of `turn`, which orders rows with the same start. First slices, with their negative duration, so that the
longest are first; then begins of slices that are written as two events, by row, the order in which Perfetto begins
them; then ends of arrows that belong to the slice around them, or to the next one."""


class Pairs(NamedTuple):
    """Slices that are written as two events, sorted by the row of the first."""

    row: Any
    """Event number of the begin."""
    start_ns: Any
    duration_ns: Any
    thread: Any
    end: Any
    """Event number of the end; -1 for none."""
    left_out: Any
    """Begins and ends that the selection leaves out, ascending."""


class Nested(NamedTuple):
    """What happens to slices that cannot stay as they are, by row."""

    side_rows: Any
    side_lanes: Any
    cut_rows: Any
    cut_ns: Any
    """New duration of each."""
    end_lanes: Any
    """Lane of the slice at each end of an arrow; -1 for none."""


def nest(rows: SortedRows, pairs: Pairs, num_ends: int) -> Nested:
    """Nests the slices of a rank.

    Args:
        rows: `ROWS`; slices that are written as two events are added here.
        pairs: Slices that are written as two events.
        num_ends: Number of ends of arrows.
    """
    # if both are at the same ns, Perfetto may read the E before the B and miss the end
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
    """Returns durations as the engines expect them."""
    durations = np.negative(turn)
    if int(turn.max(initial=0)) > 0:
        durations[turn == END_WITHIN] = AROUND
        durations[turn == END_BEFORE] = FOLLOWING
        is_pair = turn == PAIR
        durations[is_pair] = pairs.duration_ns[np.searchsorted(pairs.row, row[is_pair])]
    return durations


class _Found:
    """Lanes and cuts found so far."""

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
        """Sets new durations of slices."""
        if len(row):
            self._cuts.append((row, duration_ns))

    def cuts(self) -> tuple[Integers, Integers]:
        """Returns the row of each cut slice, ascending, and its last set duration."""
        rows, cut_ns = by_row(self._cuts)
        is_last = np.ones(len(rows), bool)
        is_last[:-1] = rows[1:] != rows[:-1]
        self._cuts = [(rows[is_last], cut_ns[is_last])]
        return self._cuts[0]

    def sides(self) -> tuple[Integers, Integers]:
        return by_row(self._sides)


def _end_before_begin(rows: SortedRows, pairs: Pairs, found: _Found) -> None:
    """Cuts 1 ns from slices that end when a B begins that is before their E in the file."""
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
    """Returns the durations of slices after the cuts so far."""
    if not len(cut_rows):
        return duration_ns
    place = np.minimum(np.searchsorted(cut_rows, row), len(cut_rows) - 1)
    return np.where(cut_rows[place] == row, cut_ns[place], duration_ns)
