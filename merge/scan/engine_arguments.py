"""Arguments of the merge engines, checked before C code reads the memory that they lie in."""

from __future__ import annotations

from typing import Any

import numpy as np

from distprof.merge.scan.scanned_columns import LATEST_NS


def slices_of(order: Any, start: Any, dur: Any, thread: Any, max_lanes: int) -> list[Any]:
    """The arguments of `find_overlaps`, of the types they have to be.

    Raises:
        ValueError: They do not belong together.
    """
    arrays = [np.ascontiguousarray(array, kind)
              for array, kind in ((order, np.int64), (start, np.int64), (dur, np.int64), (thread, np.int32))]
    if not arrays[1].shape == arrays[2].shape == arrays[3].shape:
        raise ValueError(f"expected columns of one length, found {[len(array) for array in arrays[1:]]}")
    if len(order) and not 0 <= int(arrays[0].min()) <= int(arrays[0].max()) < len(start):
        raise ValueError(f"expected row numbers from 0 to {len(start) - 1}, found others")
    if len(start) and not (int(arrays[1].min()) > -LATEST_NS and int(arrays[1].max()) < LATEST_NS
                           and int(arrays[2].min()) >= 0 and int(arrays[2].max()) < LATEST_NS):
        raise ValueError("expected times below 2^62 ns and no durations below 0, found others")
    if max_lanes < 1:
        raise ValueError(f"expected a lane or more, found {max_lanes}")
    return arrays


def times_of(start: Any, end: Any, at: Any) -> list[Any]:
    """The arguments of `find_innermost`, of the type they have to be.

    Raises:
        ValueError: They do not belong together, or do not ascend.
    """
    arrays = [np.ascontiguousarray(array, np.int64) for array in (start, end, at)]
    if arrays[0].shape != arrays[1].shape:
        raise ValueError(f"expected as many ends as starts, found {len(arrays[1])} of {len(arrays[0])}")
    if any((array[1:] < array[:-1]).any() for array in (arrays[0], arrays[2])):
        raise ValueError("expected times that ascend, found others")
    return arrays
