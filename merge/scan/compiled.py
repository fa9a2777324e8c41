"""The merge engine in C: reads and writes events without the interpreter's lock, as `scan/engine.py` specifies."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from distprof.arrays import Array, Integers
from distprof.compiled.library import INT32, INT64, POINTER, address, library
from distprof.merge.scan.scanned_columns import LATE, LaidSlices, ScannedColumns, Status, Text, lanes_of, part_of

NO_MEMORY = 4
"""How a scan may end besides `Status`: memory was exhausted."""
NUM_SPANS = 9
"""Number of fields whose places in the text are kept; columns.h has their order."""
ROOM_PER_ROW = 192
"""A rewritten event is at most this many bytes longer than the original."""


class CompiledInterner:
    """Gives equal bytes equal numbers, counted from 0 in the order of first appearance."""

    def __init__(self) -> None:
        self.handle: Any = library().interner_new()
        if not self.handle:
            raise MemoryError

    def __del__(self) -> None:
        handle, self.handle = getattr(self, "handle", None), None
        if handle:
            library().interner_free(handle)

    def __len__(self) -> int:
        return int(library().interner_count(self.handle))

    def texts(self, first: int = 0) -> list[bytes]:
        """Returns the texts from number `first` on."""
        count = len(self)
        if first >= count:
            return []
        ends = np.ctypeslib.as_array(library().interner_ends(self.handle), (count,))
        since = int(ends[first - 1]) if first else 0
        places = (ends[first:] - since).tolist()
        arena = (ctypes.c_char * places[-1]).from_address(library().interner_arena(self.handle) + since).raw
        return [arena[begin:end] for begin, end in zip([0, *places], places, strict=False)]


class _Wanted(ctypes.Structure):
    """`Wanted` of columns.h."""

    _fields_ = (("key", ctypes.c_char_p), ("len", INT32), ("is_text", INT32), ("integers", POINTER),
                ("texts", POINTER), ("found_at", POINTER), ("found_len", INT64))


class _Columns(ctypes.Structure):
    """`Columns` of columns.h."""

    _fields_ = (("max_rows", INT64), ("num_rows", INT64),
                *((name, POINTER) for name in (
                    "start", "end", "spans", "ts_ns", "dur_ns", "name", "category", "thread", "phase", "flags",
                    "names", "categories", "threads")),
                ("num_wanted", INT32), ("skims", INT32), ("wanted", POINTER), ("texts", POINTER),
                ("recovers", INT64), ("num_damaged", INT64), ("lost_bytes", INT64), ("has_found", INT64))


class CompiledScanner(ScannedColumns):
    """Reads events of one file; `Scanner` describes its methods."""

    def __init__(self, *, integers: Sequence[str] = (), texts: Sequence[str] = (), max_rows: int = 1 << 15,
                 skims: bool = False) -> None:
        super().__init__(integers=integers, texts=texts, max_rows=max_rows)
        self.names, self.categories, self.threads = CompiledInterner(), CompiledInterner(), CompiledInterner()
        self.texts, self.ids = CompiledInterner(), CompiledInterner()
        self.spans = np.zeros((max_rows, NUM_SPANS, 2), np.int32)
        """Place and length of fields in the text; length 0 means that there is none."""
        self._keys = [key.encode() for key in (*integers, *texts)]
        columns = [*self.integers.values(), *self.interned.values()]
        self._wanted = (_Wanted * max(len(columns), 1))(*(
            _Wanted(key, len(key), index >= len(integers), address(column), address(column), None, 0)
            for index, (key, column) in enumerate(zip(self._keys, columns, strict=True))))
        self._room: Any = np.empty(0, np.uint8)
        self._columns = _Columns(
            max_rows=max_rows, num_rows=0, spans=address(self.spans), names=self.names.handle,
            categories=self.categories.handle, threads=self.threads.handle, texts=self.texts.handle,
            num_wanted=len(columns), skims=skims, wanted=ctypes.addressof(self._wanted),
            **{name: address(array) for name, array in self.arrays.items()})

    def scan(self, text: Text, at: int, end: int) -> tuple[Status, int]:
        """See `Scanner`."""
        self.check(text, at, end)
        place = ctypes.c_int64(at)
        self._columns.recovers = self.recovers
        status = library().scan_events(_place_of(text), end, ctypes.byref(place), ctypes.byref(self._columns))
        self.num_rows = int(self._columns.num_rows)
        self.num_damaged, self.lost_bytes = int(self._columns.num_damaged), int(self._columns.lost_bytes)
        if status == NO_MEMORY:
            raise MemoryError
        return Status(status), place.value

    def next_event(self, text: Text, at: int, end: int) -> int | None:
        """See `Scanner`."""
        self.check(text, at, end)
        found = int(library().find_event(_place_of(text), at, end))
        return found if found >= 0 else None

    def links(self, text: Text) -> Integers:
        """See `Scanner`."""
        self.columns_of(text)
        found = np.empty(self.num_rows, np.int64)
        if not library().link_rows(_place_of(text), ctypes.byref(self._columns), self.ids.handle, address(found)):
            raise MemoryError
        return found

    def rewrite(self, text: Text, *, keep: Array, pid: Integers, tid: Integers, ts_ns: Integers, dur_ns: Integers,
                links: Integers, first_id: int) -> memoryview:
        """See `Scanner`."""
        columns = self.columns_of(text, keep=(keep, np.uint8), pid=(pid, np.int64), tid=(tid, np.int64),
                                  ts_ns=(ts_ns, np.int64), dur_ns=(dur_ns, np.int64), links=(links, np.int64))
        rows = self.num_rows
        room = int(self.arrays["end"][rows - 1] - self.arrays["start"][0]) + ROOM_PER_ROW * rows if rows else 0
        if len(self._room) < room:
            self._room = np.empty(room + room // 4, np.uint8)
        length = library().rewrite_events(_place_of(text), ctypes.byref(self._columns), *map(address, columns),
                                          self.ids.handle, first_id, address(self._room))
        if length < 0:
            raise MemoryError
        return memoryview(self._room)[:length]


def _place_of(text: Text) -> Any:
    return text if isinstance(text, bytes) else address(text)


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


new_scanner, new_lanes = CompiledScanner, CompiledLanes
