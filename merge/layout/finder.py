"""Finds the layout of a rank in one pass over its trace.

Slices and ends of arrows are kept as rows of some 30 bytes, in a temporary file if there are many; the result has one
row per event that changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from sys import intern
from typing import Any

import numpy as np

from distprof.arrays import Array, Flags, Integers
from distprof.merge.layout.arrows import CompleteArrows
from distprof.merge.layout.begin_end import pair_halves
from distprof.merge.layout.event_selection import EventSelection
from distprof.merge.layout.layout import Layout, by_row
from distprof.merge.layout.nesting import END_BEFORE, END_WITHIN, ROWS, Nested, Pairs, nest
from distprof.merge.layout.sorted_rows import ROOM, SortedRows
from distprof.merge.layout.time_span import TimeSpan
from distprof.merge.scan.engine import Interner, Scanner
from distprof.merge.scan.scanned_columns import (
    BEGIN,
    ENCLOSING,
    FLOW_END,
    FLOW_IN,
    FLOW_OUT,
    FLOW_START,
    FLOW_STEP,
    FLOWS,
    META,
    NONE,
    PAIRED,
    SLICE,
    Text,
    thread_of,
)

ENDS = {"category": np.int32, "name": np.int32, "link": np.int64, "at_ns": np.int64, "row": np.int64,
        "number": np.int64, "phase": np.uint8, "is_slice": np.bool_}
"""Columns of ends of arrows. The first five are the sort key, the first three are equal for the ends of one arrow.
`is_slice`: the event is itself a slice, with a `bind_id`."""
_END_OF = np.array([0, FLOW_END, FLOW_START, FLOW_STEP], np.uint8)
"""By `flow_in` + 2 x `flow_out`: the phase of the arrow's end at a slice with a `bind_id`."""


class LayoutFinder:
    """Takes scans one after another; must be closed afterwards."""

    def __init__(self, scanner: Scanner, selection: EventSelection, base_ns: int, folder: Path | None = None,
                 room: int = ROOM) -> None:
        self._scanner, self._selection, self._base_ns = scanner, selection, base_ns
        self.threads = RawThreads(scanner.threads)
        self._rows, self._ends = SortedRows(ROWS, 4, folder, room), SortedRows(ENDS, 5, folder, room)
        self._others = SortedRows({"start_ns": np.int64}, 0, folder, room)
        """Events that are neither slices nor metadata."""
        self._halves: list[tuple[Any, ...]] = []
        self._times = TimeSpan()
        self._last_start = -(2**63)
        """Latest start of a slice."""
        self._num_left_out = 0

    def __enter__(self) -> LayoutFinder:
        return self

    def __exit__(self, *_: object) -> None:
        for rows in (self._rows, self._ends, self._others):
            rows.close()

    def add(self, text: Text, first: int) -> None:
        """Adds the rows of the last scan; `first` is the event number of the first row."""
        scanner = self._scanner
        self.threads.look()
        start, phase, duration = (scanner.column(name) for name in ("ts_ns", "phase", "dur_ns"))
        timed = (start != NONE) & (phase != META) & (phase != 0)
        is_slice, is_half = timed & (phase == SLICE), timed & PAIRED.take(phase)
        if not self._selection.is_all:
            keep = self._kept(start, duration, scanner.column("category"), scanner.column("name"), is_slice)
            self._num_left_out += int((timed & ~keep & ~FLOWS[phase] & ~is_half).sum())
            is_slice &= keep
        self._add_slices(np.flatnonzero(is_slice), first, start, duration)
        self._add_others(start[timed & ~is_slice])
        self._add_linked(text, first, timed & FLOWS.take(phase), is_half, is_slice | (timed & (phase == BEGIN)))

    def _add_slices(self, rows: Integers, first: int, start: Integers, duration: Integers) -> None:
        # take is twice as fast as indexing, here and elsewhere
        starts, durations = start.take(rows), np.maximum(duration.take(rows), 0)
        self._times.add(starts, starts + durations)
        self._last_start = max(self._last_start, int(starts.max(initial=self._last_start)))
        threads = self.threads.same(self._scanner.column("thread").take(rows))
        self._rows.add(threads, starts, np.negative(durations, out=durations), rows + first)

    def _add_others(self, start: Integers) -> None:
        if len(start):
            self._times.add(start, start)
            self._others.add(start)

    def _add_linked(self, text: Text, first: int, is_flow: Flags, is_half: Flags, may_be_bound: Flags) -> None:
        scanner = self._scanner
        flags = scanner.column("flags")
        is_bound = may_be_bound & ((flags & (FLOW_IN | FLOW_OUT)) != 0)
        ends, halves = np.flatnonzero(is_flow | is_bound), np.flatnonzero(is_half)
        if not len(ends) and not len(halves):
            return
        links = scanner.links(text)
        if len(halves):
            at, thread, *columns = (
                scanner.column(name)[halves] for name in ("ts_ns", "thread", "phase", "name", "category"))
            self._halves.append((halves + first, at, self.threads.same(thread), *columns, links[halves]))
        if len(ends):
            self._add_ends(ends, first, is_bound[ends], links[ends])

    def _add_ends(self, ends: Integers, first: int, is_bound: Flags, links: Integers) -> None:
        at, thread, phase, name, category, flags = (
            self._scanner.column(column)[ends] for column in ("ts_ns", "thread", "phase", "name", "category", "flags"))
        phase = np.where(is_bound, _END_OF[(flags & (FLOW_IN | FLOW_OUT)) >> 5], phase)
        number = len(self._ends) + np.arange(len(ends))
        # arrows with the same id but another name or category are different arrows
        self._ends.add(np.where(is_bound, np.int32(-2), category), np.where(is_bound, np.int32(-2), name), links, at,
                       ends + first, number, phase, is_bound)
        asks = np.flatnonzero(~is_bound)
        binds_next = (phase == FLOW_END) & ((flags & ENCLOSING) == 0)
        self._rows.add(self.threads.same(thread[asks]), at[asks], np.where(binds_next[asks], END_BEFORE, END_WITHIN),
                       number[asks])

    def _kept(self, start: Integers, duration: Integers, category: Array, name: Array, is_slice: Flags) -> Flags:
        return self._selection.kept(start + self._base_ns, duration, category, name, is_slice, self._scanner)

    def span(self) -> tuple[int, int] | None:
        """Returns first and last time, without events a day or more apart from most; None without events."""
        return self._times.span(self._all_times)

    def _all_times(self) -> Iterator[tuple[Any, Any]]:
        for _, start, turn, _ in self._rows.parts():
            is_slice = turn <= 0
            yield start[is_slice], (start - turn)[is_slice]
        for start, in self._others.parts():
            yield start, start

    def layout(self) -> Layout:
        """Computes the layout; must be called after `span`, and once."""
        pairs = self._pairs()
        nested = nest(self._rows, pairs, len(self._ends))
        hanging, reused, beside = self._arrows(nested.end_lanes, pairs.left_out)
        side_rows, side_lanes = by_row([(nested.side_rows, nested.side_lanes), _ends_beside(nested, pairs), beside])
        is_pair = np.isin(nested.cut_rows, pairs.row)
        moved_rows, moved_ns = _moved(nested.cut_rows[is_pair], nested.cut_ns[is_pair], pairs)
        return Layout(
            side_rows=side_rows, side_lanes=side_lanes, num_side=len(nested.side_rows),
            cut_rows=nested.cut_rows[~is_pair], cut_ns=nested.cut_ns[~is_pair],
            moved_rows=moved_rows, moved_ns=moved_ns, hanging_rows=hanging, reused_rows=reused[0], reused_ids=reused[1],
            left_out_rows=pairs.left_out, num_left_out=self._num_left_out + len(pairs.left_out))

    def _arrows(self, end_lanes: Array,
                left_out: Integers) -> tuple[Integers, tuple[Integers, Integers], tuple[Integers, Integers]]:
        """Returns rows of incomplete ends; rows and new ids; and rows and lanes of those on side lanes."""
        hanging, reused, beside = list[Any](), list[tuple[Any, Any]](), list[tuple[Any, Any]]()
        arrows = CompleteArrows()
        for *keys, row, number, phase, is_slice in self._ends.blocks():
            lane = end_lanes.take(number)
            is_bound, there = is_slice | (lane >= 0), ~np.isin(row, left_out)
            hanging.append(row[there & ~is_bound])
            bound, aside = np.flatnonzero(there & is_bound), np.flatnonzero(there & (lane > 0))
            beside.append((row[aside], lane[aside]))
            rows, kept, ids = arrows.add([key[bound] for key in keys[:3]], row[bound], phase[bound])
            hanging.append(rows[~kept])
            reused.append((rows[ids != NONE], ids[ids != NONE]))
        hangs = np.sort(np.concatenate([*hanging, arrows.end()]))
        rows, lanes = by_row(beside)
        stays = ~np.isin(rows, hangs)
        return hangs, by_row(reused), (rows[stays], lanes[stays])

    def _pairs(self) -> Pairs:
        nothing = np.empty(0, np.int64)
        if not self._halves:
            return Pairs(nothing, nothing, nothing, nothing, nothing, nothing)
        row, at, thread, phase, name, category, link = (
            np.concatenate(column) for column in zip(*self._halves, strict=True))
        self._halves = []
        blanks = [number for number, text in enumerate(self._scanner.names.texts()) if not text]
        begin, end = pair_halves(at, thread, phase, np.where(np.isin(name, blanks), -1, name), category, link)
        duration = np.where(end < 0, max(self._last_start, int(at.max())), at[end]) - at[begin]
        has_end, alone = end >= 0, np.setdiff1d(np.arange(len(row)), np.concatenate([begin, end]))
        left_out = nothing
        if not self._selection.is_all:
            keep = self._kept(at[begin], duration, category[begin], name[begin], np.ones(len(begin), bool))
            keep_alone = self._kept(at[alone], np.full(len(alone), NONE), category[alone], name[alone],
                                    np.zeros(len(alone), bool))
            left_out = np.sort(row[np.concatenate([begin[~keep], end[~keep & has_end], alone[~keep_alone]])])
            begin, end, duration = begin[keep], end[keep], duration[keep]
        stays = np.flatnonzero(phase[begin] == BEGIN)  # asynchronous slices are not nested
        stays = stays[np.argsort(row[begin[stays]])]
        begin, end = begin[stays], end[stays]
        return Pairs(row[begin], at[begin], duration[stays], thread[begin], np.where(end >= 0, row[end], -1), left_out)


def _ends_beside(nested: Nested, pairs: Pairs) -> tuple[Integers, Integers]:
    """Returns the rows of the ends of slices on side lanes, and their lanes."""
    is_pair = np.isin(nested.side_rows, pairs.row)
    ends = pairs.end[np.searchsorted(pairs.row, nested.side_rows[is_pair])]
    return ends[ends >= 0], nested.side_lanes[is_pair][ends >= 0]


def _moved(cut_rows: Integers, cut_ns: Integers, pairs: Pairs) -> tuple[Integers, Integers]:
    """Returns the rows of the ends of slices that are cut, and their new times."""
    places = np.searchsorted(pairs.row, cut_rows)
    ends, end_ns = pairs.end[places], pairs.start_ns[places] + cut_ns
    return by_row([(ends[ends >= 0], end_ns[ends >= 0])])


class RawThreads:
    """The scanner's threads by number."""

    def __init__(self, interner: Interner) -> None:
        self._interner = interner
        self.names: list[tuple[str, str]] = []
        """Process and thread of each number."""
        self._first: dict[tuple[str, str], int] = {}
        self._numbers: Any = np.empty(0, np.int32)

    def look(self) -> None:
        """Adds new threads."""
        known = len(self.names)
        if len(self._interner) == known:
            return
        for text in self._interner.texts(known):
            pid, tid = thread_of(text)
            self.names.append((intern(pid), intern(tid)))
        new = [self._first.setdefault(name, number) for number, name in enumerate(self.names[known:], known)]
        if len(self.names) > len(self._numbers):
            self._numbers = np.resize(self._numbers, 2 * len(self.names))
        self._numbers[known:len(self.names)] = new

    def same(self, numbers: Array) -> Array:
        """Replaces the numbers of rows by one number for all spellings of a thread: 7 and "7" are the same."""
        return numbers if len(self._first) == len(self.names) else self._numbers.take(numbers)
