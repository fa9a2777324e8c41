"""Slices that overlap: columns of them come in, lanes and cuts go out. The same as in scan.c."""

from __future__ import annotations

from typing import Any

import numpy as np

from distprof.merge.rows import slices_of

_NEVER = 2**63 - 1


def find_overlaps(order: Any, start: Any, dur: Any, thread: Any, *, tolerance: int, max_lanes: int) -> tuple[Any, Any]:
    """Slices that stick out of the one they begin in.

    Args:
        order: Row numbers by thread, start, longest first; int64.
        start: Start of each row in ns.
        dur: Duration of each row in ns.
        thread: int32 a row.
        tolerance: By so much, in ns, a slice may stick out to be cut; else it goes to a lane of its own.
        max_lanes: Lanes of a thread, the thread itself included.

    Returns:
        Lane of each row, 0 for the thread itself; and new durations, -1 where the old one stays.
    """
    order, start, dur, thread = slices_of(order, start, dur, thread)
    if max_lanes < 1:
        raise ValueError(f"expected a lane or more, found {max_lanes}")
    lanes, cuts = np.zeros(len(start), np.int32), np.full(len(start), -1, np.int64)
    open_ends: list[list[int]] = []
    known = None
    columns = (order, thread[order], start[order], (start + dur)[order])
    for row, own, begin, end in zip(*(column.tolist() for column in columns), strict=True):
        if own != known:
            open_ends, known = [[] for _ in range(max_lanes)], own
        lane, last = _lane_of(open_ends, begin, end, tolerance)
        lanes[row] = lane
        if last != end:
            cuts[row] = last - begin
        open_ends[lane].append(last)
    return lanes, cuts


def _lane_of(open_ends: list[list[int]], begin: int, end: int, tolerance: int) -> tuple[int, int]:
    """The first lane that takes the slice, and where it ends there."""
    for lane, ends in enumerate(open_ends):
        while ends and ends[-1] <= begin:
            ends.pop()
        room = ends[-1] if ends else _NEVER
        if end <= room:
            return lane, end
        if lane == 0 and end - room <= tolerance:
            return lane, room
    return len(open_ends) - 1, room
