"""What the engines find out about slices that come in parts, and the rows that they take."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from distprof.arrays import Array
from distprof.merge.scan.scanned_columns import LATEST_NS

AROUND, FOLLOWING = -1, -2
"""Durations of rows that are no slices but ask for the lane of one: of that around their time, the last that has begun
and not ended before; or of that which begins next."""
LATE = np.dtype([("row", np.int64), ("lane", np.int64), ("cut", np.int64)])


class LaidSlices(NamedTuple):
    """What was found about the rows of a part, and about some of earlier parts."""

    lane: Any
    """Lane of each slice, 0 for the thread itself; of rows that ask, that of the slice they ask for, -1 without one."""
    cut: Any
    """New duration of each slice, -1 where the old one stays."""
    late: Any
    """Rows of earlier parts, as an array of `LATE`: the lane of the slice that follows one which asked for it, or what
    is left of a slice; -1 for the other."""


def part_of(row: npt.ArrayLike, thread: npt.ArrayLike, start: npt.ArrayLike, duration: npt.ArrayLike) -> list[Array]:
    """A part, of the types it has to be, checked before C code reads the memory that it lies in.

    Raises:
        ValueError: The columns do not belong together, or are not by thread and start.
    """
    arrays: list[Any] = [np.ascontiguousarray(array, kind) for array, kind in (
        (row, np.int64), (thread, np.int32), (start, np.int64), (duration, np.int64))]
    if len({array.shape for array in arrays}) != 1:
        raise ValueError(f"expected columns of one length, found {[len(array) for array in arrays]}")
    _, threads, starts, durations = arrays
    if len(starts) and (int(starts.min()) <= -LATEST_NS or int(starts.max()) >= LATEST_NS
                        or int(durations.min()) < FOLLOWING or int(durations.max()) >= LATEST_NS):
        raise ValueError("expected times below 2^62 ns and no durations below 0, found others")
    if (threads[1:] < threads[:-1]).any() or ((starts[1:] < starts[:-1]) & (threads[1:] == threads[:-1])).any():
        raise ValueError("expected slices by thread and start, found another order")
    return arrays


def lanes_of(tolerance: int, max_lanes: int) -> tuple[int, int]:
    """The arguments of `new_lanes`.

    Raises:
        ValueError: They leave no lane.
    """
    if max_lanes < 1:
        raise ValueError(f"expected a lane or more, found {max_lanes}")
    return tolerance, max_lanes
