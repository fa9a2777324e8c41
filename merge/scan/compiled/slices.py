"""Slices that overlap, and the innermost slice at a time, by slices.c."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from distprof.arrays import Array
from distprof.compiled.library import address, library
from distprof.merge.scan.laid_slices import LATE, LaidSlices, lanes_of, part_of


class CompiledLanes:
    """See `Lanes`."""

    def __init__(self, *, tolerance: int, max_lanes: int) -> None:
        self._handle: Any = library().lanes_new(*lanes_of(tolerance, max_lanes))
        if not self._handle:
            raise MemoryError

    def __del__(self) -> None:
        handle, self._handle = getattr(self, "_handle", None), None
        if handle:
            library().lanes_free(handle)

    def add(self, row: npt.ArrayLike, thread: npt.ArrayLike, start: npt.ArrayLike,
            duration: npt.ArrayLike) -> LaidSlices:
        """See `Lanes`."""
        columns = part_of(row, thread, start, duration)
        lane, cut = np.empty(len(columns[0]), np.int32), np.empty(len(columns[0]), np.int64)
        if not library().lanes_add(self._handle, len(lane), *map(address, columns), address(lane), address(cut)):
            raise MemoryError
        return LaidSlices(lane, cut, self._late())

    def _late(self) -> Array:
        count = int(library().lanes_num_late(self._handle))
        if not count:
            return np.empty(0, LATE)
        place = library().lanes_late(self._handle)
        return np.frombuffer(ctypes.string_at(place, count * LATE.itemsize), LATE)
