"""Slices that overlap, and the innermost slice at a time; as in slices.c."""

from __future__ import annotations

from typing import Any

import numpy as np

from distprof.merge.scan.engine_arguments import slices_of, times_of

_NEVER = 2**63 - 1


def find_overlaps(order: Any, start: Any, dur: Any, thread: Any, *, tolerance: int, max_lanes: int) -> tuple[Any, Any]:
    """See `Engine`."""
    order, start, dur, thread = slices_of(order, start, dur, thread, max_lanes)
    lanes, cuts = np.zeros(len(start), np.int32), np.full(len(start), -1, np.int64)
    found = _Found(lanes=lanes, cuts=cuts, starts=start.tolist(), ends=(start + dur).tolist())
    known, owners = None, thread.tolist()
    for row in order.tolist():
        if owners[row] != known:
            stacks: list[_Stack] = [[] for _ in range(max_lanes)]
            known = owners[row]
        found.place(row, stacks, tolerance)
    return lanes, cuts


_Stack = list[tuple[int, int]]
"""End and row of each open slice of a lane, the innermost last."""


class _Found:
    """Lanes and cuts so far."""

    def __init__(self, *, lanes: Any, cuts: Any, starts: list[int], ends: list[int]) -> None:
        self._lanes, self._cuts, self._starts, self._ends = lanes, cuts, starts, ends

    def place(self, row: int, stacks: list[_Stack], tolerance: int) -> None:
        """Puts a slice into the first lane that takes it."""
        begin, end = self._starts[row], self._ends[row]
        for lane, stack in enumerate(stacks):
            while stack and stack[-1][0] <= begin:
                stack.pop()
            room = stack[-1][0] if stack else _NEVER
            if end <= room or (lane == 0 and self._cut_others(stack, begin, end, min(tolerance, end - room - 1))):
                break
            if (lane == 0 and end - room <= tolerance) or lane + 1 == len(stacks):
                end = room
                self._cuts[row] = end - begin
                break
        self._lanes[row] = lane
        stack.append((end, row))

    def _cut_others(self, stack: _Stack, begin: int, end: int, most: int) -> bool:
        """Ends the slices that another one sticks out of where it begins, if none loses more than that, or all."""
        crossed = [other for until, other in stack if until < end]
        if any(self._ends[other] - begin > most or self._starts[other] == begin for other in crossed):
            return False
        for other in crossed:
            self._cuts[other] = begin - self._starts[other]
        del stack[len(stack) - len(crossed):]
        return True


def find_innermost(start: Any, end: Any, at: Any) -> Any:
    """See `Engine`."""
    starts, ends, times = (array.tolist() for array in times_of(start, end, at))
    found: list[int] = []
    opened: list[int] = []
    begun = 0
    for time in times:
        while begun < len(starts) and starts[begun] <= time:
            while opened and ends[opened[-1]] < starts[begun]:
                opened.pop()
            opened.append(begun)
            begun += 1
        while opened and ends[opened[-1]] < time:
            opened.pop()
        found.append(opened[-1] if opened else -1)
    return np.array(found, np.int64)
