"""The layout of a rank: which of its events cannot be shown as they are, and what becomes of each.

These are slices that overlap others of their thread, and arrows that lead nowhere. A viewer shows a thread as slices
within slices: what partly overlaps goes to a lane beside the thread, or is cut.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from distprof.merge.chrome import arrows
from distprof.merge.chrome.arrows import Ends
from distprof.merge.chrome.begin_end import end_before_begin, pair_halves
from distprof.merge.chrome.selection import EventSelection
from distprof.merge.scan.engine import ENGINE, Scanner
from distprof.merge.scan.event_phases import BEGIN, FLOW_END, FLOW_START, FLOW_STEP, FLOWS, META, PAIRED, SLICE
from distprof.merge.scan.scanned_columns import ENCLOSING, FLOW_IN, FLOW_OUT, NONE, Text
from distprof.merge.scan.thread_ids import thread_of

TOLERANCE_NS = 1000
"""Slices that stick out of each other by no more are cut: rounding, not another order of things."""
MAX_LANES = 16
FAR_NS = 86_400 * 10**9
"""What is parted from most events by so long a gap is damaged, or of another clock: it would make the rest a dot."""
_END_OF = np.array([0, FLOW_END, FLOW_START, FLOW_STEP])
"""By `flow_in` + 2 x `flow_out`: which end of an arrow a slice with a `bind_id` is."""


def _nothing() -> Any:
    return np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Numbers of events, counted through the file and ascending, with what becomes of each."""

    side_rows: Any = field(default_factory=_nothing)
    """They leave their lane: slices that overlap another one there, and ends of arrows that belong to these."""
    side_lanes: Any = field(default_factory=_nothing)
    """Lane of each, from 1 on."""
    num_side: int = 0
    """Slices among them."""
    cut_rows: Any = field(default_factory=_nothing)
    """Slices whose end is cut."""
    cut_ns: Any = field(default_factory=_nothing)
    """Their new durations."""
    moved_rows: Any = field(default_factory=_nothing)
    """Ends (phase E) of such slices."""
    moved_ns: Any = field(default_factory=_nothing)
    """Their new times."""
    hanging_rows: Any = field(default_factory=_nothing)
    """Ends of arrows that are left out: they lie in no slice, or lack their other end. A slice stays, without arrow."""
    reused_rows: Any = field(default_factory=_nothing)
    """Ends of arrows that need another id, since an arrow before had theirs."""
    reused_ids: Any = field(default_factory=_nothing)
    left_out_rows: Any = field(default_factory=_nothing)
    """Begins and ends that the selection leaves out."""
    num_left_out: int = 0
    """Events that the selection leaves out."""

    @property
    def num_lanes(self) -> int:
        """Lanes that threads need at most, their own included."""
        return int(self.side_lanes.max(initial=0)) + 1


class LayoutFinder:
    """Keeps 28 bytes of each slice and each end of an arrow, to see what overlaps and what hangs in the air."""

    def __init__(self, scanner: Scanner, selection: EventSelection, base_ns: int) -> None:
        self._scanner, self._selection, self._base_ns = scanner, selection, base_ns
        self._slices: list[tuple[Any, ...]] = []
        self._ends: list[tuple[Any, ...]] = []
        self._halves: list[tuple[Any, ...]] = []
        self._others: list[Any] = []
        self._num_left_out = 0

    def add(self, text: Text, first: int) -> None:
        """Takes in the rows of the last scan, the first of which has this number."""
        scanner = self._scanner
        start, phase, duration = (scanner.column(name) for name in ("ts_ns", "phase", "dur_ns"))
        timed = (start != NONE) & (phase != META) & (phase != 0)
        is_slice, is_half = timed & (phase == SLICE), timed & PAIRED.take(phase)
        if not self._selection.is_all:
            keep = self._kept(start, duration, scanner.column("category"), is_slice)
            self._num_left_out += int((timed & ~keep & ~FLOWS[phase] & ~is_half).sum())
            is_slice &= keep
        rows = np.flatnonzero(is_slice)
        # take is twice as fast as an index, here and elsewhere
        self._slices.append((rows + first, start.take(rows), np.maximum(duration.take(rows), 0),
                             scanner.column("thread").take(rows)))
        self._others.append(start[timed & ~is_slice].copy())
        self._add_linked(text, first, timed & FLOWS.take(phase), is_half, is_slice | (timed & (phase == BEGIN)))

    def _add_linked(self, text: Text, first: int, is_flow: Any, is_half: Any, may_be_bound: Any) -> None:
        scanner = self._scanner
        flags = scanner.column("flags")
        is_bound = may_be_bound & ((flags & (FLOW_IN | FLOW_OUT)) != 0)
        ends, halves = np.flatnonzero(is_flow | is_bound), np.flatnonzero(is_half)
        if not len(ends) and not len(halves):
            return
        columns = [scanner.column(name) for name in ("ts_ns", "thread", "phase", "name", "category")]
        links = scanner.links(text)
        self._halves.append((halves + first, *(column[halves] for column in columns), links[halves]))
        at, thread, phase, name, category = (column[ends] for column in columns)
        bound = is_bound[ends]
        phase = np.where(bound, _END_OF[(flags[ends] & (FLOW_IN | FLOW_OUT)) >> 5], phase)
        # of one id: name and category make different arrows of it
        self._ends.append((
            ends + first, at, thread, phase, np.where(bound, -2, name), np.where(bound, -2, category), links[ends],
            (phase == FLOW_END) & ((flags[ends] & ENCLOSING) == 0) & ~bound, bound))

    def _kept(self, start: Any, duration: Any, category: Any, is_slice: Any) -> Any:
        return self._selection.kept(start + self._base_ns, duration, category, is_slice, self._scanner.categories)

    def span(self) -> tuple[int, int] | None:
        """First and last time, without those that are far away from all others; None without any."""
        _, start, duration, _ = self._all()
        times = np.concatenate([start, *self._others])
        if not len(times):
            return None
        first, last = int(times.min()), int(times.max())
        if len(start):
            last = max(last, int((start + duration).max()))
        if last - first < FAR_NS:
            return first, last
        return _without_far_ones(np.sort(times), np.concatenate([times, start + duration]))

    def layout(self) -> Layout:
        """Says what becomes of the rows."""
        plain, pairs = self._all(), self._pairs()
        rows, start, duration, thread = plain if not len(pairs.end) else (
            np.concatenate(both) for both in zip(plain, pairs.slices, strict=True))
        num_plain = len(plain[0])
        # of what happens in one nanosecond Perfetto may read the E before the B, and would see no end
        empty = num_plain + np.flatnonzero(duration[num_plain:] == 0)
        duration[empty] = 1
        thread = self._same_threads(thread)
        order = _by_thread_and_start(rows, thread, start, duration, num_plain)
        lane, cut = ENGINE.find_overlaps(order, start, duration, thread.astype(np.int32), tolerance=TOLERANCE_NS,
                                         max_lanes=MAX_LANES)
        cut[empty] = np.where(cut[empty] < 0, 1, cut[empty])
        if len(pairs.end):
            end_before_begin(thread, start, np.where(cut < 0, duration, cut), cut, rows[num_plain:], pairs.end)
        ends, end_ns = self._arrow_ends(pairs.left_out), start + np.where(cut < 0, duration, cut)
        owner = arrows.owners(ends, thread, start, end_ns, order)
        kept, ids = arrows.complete_arrows(ends, owner)
        side = [(rows, lane), (pairs.end, np.where(pairs.end < 0, 0, lane[num_plain:]))]
        if lane.any():
            side.append((ends.row, np.where(kept & (owner >= 0), lane[owner], 0)))
        side_rows, side_lanes = _chosen([np.concatenate(column) for column in zip(*side, strict=True)], 1)
        cut_rows, cut_ns = _chosen([rows[:num_plain], cut[:num_plain]], 0)
        moved_rows, moved_ns = _chosen(
            [pairs.end, np.where((pairs.end < 0) | (cut[num_plain:] < 0), NONE, (start + cut)[num_plain:])], NONE + 1)
        return Layout(
            side_rows=side_rows, side_lanes=side_lanes, num_side=int((lane > 0).sum()), cut_rows=cut_rows,
            cut_ns=cut_ns, moved_rows=moved_rows, moved_ns=moved_ns, hanging_rows=ends.row[~kept],
            reused_rows=ends.row[ids != NONE], reused_ids=ids[ids != NONE], left_out_rows=pairs.left_out,
            num_left_out=self._num_left_out + len(pairs.left_out))

    def _same_threads(self, thread: Any) -> Any:
        """The thread numbers of rows, with one for all spellings of a thread: 7 and "7" are written as the same."""
        first: dict[tuple[str, str], int] = {}
        texts = self._scanner.threads.texts()
        numbers = [first.setdefault(thread_of(text), number) for number, text in enumerate(texts)]
        return thread if len(first) == len(texts) else np.array(numbers, thread.dtype)[thread]

    def _all(self) -> tuple[Any, ...]:
        """All slices as one part."""
        if len(self._slices) != 1:
            self._slices = [tuple(_joined(self._slices, 4))]
        return self._slices[0]

    def _arrow_ends(self, left_out: Any) -> Ends:
        row, at, thread, phase, name, category, link, binds_next, is_slice = _joined(self._ends, 9)
        if len(left_out):
            there = ~np.isin(row, left_out)
            row, at, thread, phase, name, category, link, binds_next, is_slice = (
                column[there] for column in (row, at, thread, phase, name, category, link, binds_next, is_slice))
        return Ends(row=row, at_ns=at, key=_keys(link, name, category), thread=self._same_threads(thread), phase=phase,
                    binds_next=binds_next.astype(bool), is_slice=is_slice.astype(bool))

    def _pairs(self) -> _Pairs:
        row, at, thread, phase, name, category, link = _joined(self._halves, 7)
        nothing = np.empty(0, np.int64)
        if not len(row):
            return _Pairs((nothing,) * 4, nothing, nothing)
        blanks = [number for number, text in enumerate(self._scanner.names.texts()) if not text]
        thread = self._same_threads(thread)
        begin, end = pair_halves(at, thread, phase, np.where(np.isin(name, blanks), -1, name), category, link)
        last = int(self._all()[1].max(initial=at.max()))
        duration = np.where(end < 0, last, at[end]) - at[begin]
        has_end, alone = end >= 0, np.setdiff1d(np.arange(len(row)), np.concatenate([begin, end]))
        left_out = nothing
        if not self._selection.is_all:
            keep = self._kept(at[begin], duration, category[begin], np.ones(len(begin), bool))
            keep_alone = self._kept(at[alone], np.full(len(alone), NONE), category[alone], np.zeros(len(alone), bool))
            left_out = np.sort(row[np.concatenate([begin[~keep], end[~keep & has_end], alone[~keep_alone]])])
            begin, end, duration, has_end = begin[keep], end[keep], duration[keep], has_end[keep]
        stays = phase[begin] == BEGIN  # asynchronous ones are in nobody's way
        begin, end, duration, has_end = begin[stays], end[stays], duration[stays], has_end[stays]
        slices = row[begin], at[begin], duration, thread[begin]
        return _Pairs(slices, np.where(has_end, row[end], -1), left_out)


def _without_far_ones(times: Any, ends: Any) -> tuple[int, int]:
    """First and last of the times around the middle one that no gap of `FAR_NS` parts from it; `times` ascends."""
    gaps, middle = np.flatnonzero(np.diff(times) >= FAR_NS), len(times) // 2
    first, last = gaps[gaps < middle], gaps[gaps >= middle]
    from_ns, until_ns = times[first[-1] + 1 if len(first) else 0], times[last[0] if len(last) else -1]
    return int(from_ns), int(ends[ends < until_ns + FAR_NS].max())


class _Pairs(NamedTuple):
    slices: tuple[Any, ...]
    """Event number of the begin, start, duration and thread."""
    end: Any
    """Event number of the end, -1 where there is none."""
    left_out: Any


def _keys(*columns: Any) -> Any:
    """A number a row, equal where all columns are."""
    order = np.lexsort(columns)
    changes = np.zeros(len(order), bool)
    for column in columns:
        ordered = column[order]
        changes[1:] |= ordered[1:] != ordered[:-1]
    keys = np.empty(len(order), np.int64)
    keys[order] = np.cumsum(changes)
    return keys


def _chosen(columns: list[Any], least: int) -> list[Any]:
    """Those rows whose second column is at least that, by the first."""
    columns = [column[columns[1] >= least] for column in columns]
    order = np.argsort(columns[0], kind="stable")
    return [column[order] for column in columns]


def _joined(parts: list[tuple[Any, ...]], width: int) -> list[Any]:
    return [np.concatenate([part[column] for part in parts]) if parts else np.empty(0, np.int64)
            for column in range(width)]


def _by_thread_and_start(row: Any, thread: Any, start: Any, duration: Any, num_plain: int) -> Any:
    """Places by thread, start, and longest first among those that start together.

    Pairs, all behind place `num_plain`, come after these in the order of the file: so Perfetto begins them.
    """
    if not len(start):
        return np.empty(0, np.int64)
    since = start - start.min()
    bits = int(since.max()).bit_length()
    if num_plain < len(start) or bits + int(thread.max()).bit_length() > 62:
        is_pair = np.arange(len(start)) >= num_plain
        return np.lexsort((np.where(is_pair, row, -duration), is_pair, start, thread)).astype(np.int64)
    key = (thread.astype(np.int64) << bits) | since
    order = np.argsort(key, kind="stable")  # most is in order already, which this kind of sort makes use of
    ordered = key.take(order)
    ties = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(ties):
        rows = np.union1d(ties, ties + 1)
        some = order[rows]
        order[rows] = some[np.lexsort((-duration[some], key[some]))]
    return order
