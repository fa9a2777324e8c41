"""Assigns overlapping slices to lanes, and finds the innermost slice at a time; like slices.c."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from distprof.merge.scan.scanned_columns import AROUND, LATE, LaidSlices, lanes_of, part_of

_NEVER = 2**63 - 1


class _Open(NamedTuple):
    """A slice that has not ended."""

    start: int
    end: int
    whole: int
    """When it ends if it is not cut."""
    place: int
    """Number of rows before it, in all parts."""
    row: int


class PlainLanes:
    """See `Lanes`."""

    def __init__(self, *, tolerance: int, max_lanes: int) -> None:
        self._tolerance, self._max_lanes = lanes_of(tolerance, max_lanes)
        self._thread: int | None = None
        self._place = 0
        self._begin_thread()

    def _begin_thread(self) -> None:
        self._stacks: list[list[_Open]] = [[] for _ in range(self._max_lanes)]
        self._waiting: list[tuple[int, int]] = []
        """Place and row of those that ask for the slice that follows."""

    def add(self, row: npt.ArrayLike, thread: npt.ArrayLike, start: npt.ArrayLike,
            duration: npt.ArrayLike) -> LaidSlices:
        """See `Lanes`."""
        columns = part_of(row, thread, start, duration)
        self._first = self._place
        self._lanes, self._cuts, self._late = [-1] * len(columns[0]), [-1] * len(columns[0]), list[tuple[int, ...]]()
        for number, on, at, lasts in zip(*(column.tolist() for column in columns), strict=True):
            if on != self._thread:
                self._thread = on
                self._begin_thread()
            if lasts >= 0:
                self._take(_Open(at, at + lasts, at + lasts, self._place, number))
            elif lasts == AROUND:
                self._lanes[self._place - self._first] = self._lane_at(at)
            else:
                self._waiting.append((self._place, number))
            self._place += 1
        return LaidSlices(np.array(self._lanes, np.int32), np.array(self._cuts, np.int64), np.array(self._late, LATE))

    def _lane_at(self, at: int) -> int:
        tops = []
        for lane, stack in enumerate(self._stacks):
            while stack and stack[-1].end < at:
                stack.pop()
            if stack:
                tops.append((stack[-1].place, lane))
        return max(tops)[1] if tops else -1

    def _take(self, one: _Open) -> None:
        """Puts a slice into the first lane with room for it, and notes the lane for rows that wait for this slice."""
        for lane, stack in enumerate(self._stacks):
            while stack and stack[-1].end <= one.start:
                stack.pop()
            room = stack[-1].end if stack else _NEVER
            beyond = one.end - room
            if beyond <= 0 or (lane == 0 and self._cut_others(stack, one, min(self._tolerance, beyond - 1))):
                break
            if (lane == 0 and beyond <= self._tolerance) or lane + 1 == self._max_lanes:
                one = one._replace(end=room)
                self._cut(one, room - one.start)
                break
        stack.append(one)
        self._lanes[one.place - self._first] = lane
        for place, row in reversed(self._waiting):
            if place >= self._first:
                self._lanes[place - self._first] = lane
            else:
                self._late.append((row, lane, -1))
        self._waiting.clear()

    def _cut_others(self, stack: list[_Open], one: _Open, most: int) -> bool:
        """Cuts the slices that `one` outlasts where `one` begins, unless a slice loses more than `most`, or all."""
        outer = len(stack)
        while outer and stack[outer - 1].end < one.end:
            outer -= 1
            if stack[outer].start == one.start or stack[outer].whole - one.start > most:
                return False
        while len(stack) > outer:
            other = stack.pop()
            self._cut(other, one.start - other.start)
        return True

    def _cut(self, one: _Open, duration: int) -> None:
        if one.place >= self._first:
            self._cuts[one.place - self._first] = duration
        else:
            self._late.append((one.row, -1, duration))
