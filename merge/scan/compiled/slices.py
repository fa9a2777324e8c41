"""Slices that overlap, and the innermost slice at a time, by slices.c."""

from __future__ import annotations

from typing import Any

import numpy as np

from distprof.merge.scan.compiled.library import address, library
from distprof.merge.scan.engine_arguments import slices_of, times_of


def find_overlaps(order: Any, start: Any, dur: Any, thread: Any, *, tolerance: int, max_lanes: int) -> tuple[Any, Any]:
    """See `Engine`."""
    columns = slices_of(order, start, dur, thread, max_lanes)
    lane, cut = np.zeros(len(start), np.int32), np.full(len(start), -1, np.int64)
    found = library().find_overlaps(len(order), *map(address, columns), tolerance, max_lanes, address(lane),
                                    address(cut))
    if found < 0:
        raise MemoryError
    return lane, cut


def find_innermost(start: Any, end: Any, at: Any) -> Any:
    """See `Engine`."""
    starts, ends, times = times_of(start, end, at)
    found = np.empty(len(times), np.int64)
    if not library().find_innermost(len(starts), address(starts), address(ends), len(times), address(times),
                                    address(found)):
        raise MemoryError
    return found
