"""Columns of Chrome events and rewritten events: chunks of JSON text come in, numpy arrays and text go out.

The work is done by scan.c, compiled when distprof is installed; where it is not, by reference.py, many times slower.
"""

from __future__ import annotations

import ctypes
import os
import zlib
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np

SOURCE = Path(__file__).with_name("scan.c")
LIBRARY = Path(__file__).with_name("_scan.so")
NONE = -(2**63)
"""In a column of times or integers: not there."""
REPAIR, BAD_TIME, GLOBAL, NON_ASCII, ENCLOSING, FLOW_IN, FLOW_OUT = (1 << bit for bit in range(7))
"""Flags of an event: its text is no strict JSON; its time is no number; it is an instant of scope g; it has bytes above
127; it is the end of an arrow to the slice around it, not to the next one; it is a slice to which the arrow of its
`bind_id` comes, or from which."""
PID, TID, TS, DUR, ID, ID2, BIND_ID, SCOPE, ARGS = range(9)
"""Fields whose place in the text is kept, in the order of `spans`."""
ROOM_PER_ROW = 192
"""Bytes that a rewritten event may be longer than the original, at most."""


Text = bytes | Any
"""JSON text: bytes, or a numpy array of them."""


class Status(IntEnum):
    """How a scan ended."""

    MORE = 0
    """With the text; what is left is no whole event."""
    ENDED = 1
    """With the array."""
    FULL = 2
    """With the room for rows."""
    MALFORMED = 3
    """At something that is no event."""


class Interner:
    """Equal bytes get equal numbers, counted from 0 in the order in which they first appear."""

    def __init__(self) -> None:
        self._handle = _library().interner_new()
        if not self._handle:
            raise MemoryError

    def __del__(self) -> None:
        handle, self._handle = getattr(self, "_handle", None), None
        if handle:
            _library().interner_free(handle)

    def __len__(self) -> int:
        return int(_library().interner_count(self._handle))

    def texts(self, first: int = 0) -> list[bytes]:
        """Those from number `first` on."""
        count = len(self)
        if first >= count:
            return []
        ends = np.ctypeslib.as_array(_library().interner_ends(self._handle), (count,))
        begins = [int(ends[first - 1]) if first else 0, *ends[first:-1].tolist()]
        arena = ctypes.string_at(_library().interner_arena(self._handle), int(ends[-1]))
        return [arena[begin:end] for begin, end in zip(begins, ends[first:].tolist(), strict=True)]

    @property
    def handle(self) -> Any:
        """For the library."""
        return self._handle


class _Wanted(ctypes.Structure):
    _fields_ = (("key", ctypes.c_char_p), ("len", ctypes.c_int32), ("is_text", ctypes.c_int32),
                ("integers", ctypes.c_void_p), ("texts", ctypes.c_void_p), ("found_at", ctypes.c_void_p),
                ("found_len", ctypes.c_int64))


class _Columns(ctypes.Structure):
    _fields_ = (("max_rows", ctypes.c_int64), ("num_rows", ctypes.c_int64),
                *((name, ctypes.c_void_p) for name in (
                    "start", "end", "spans", "ts_ns", "dur_ns", "name", "category", "thread", "phase", "flags",
                    "names", "categories", "threads")),
                ("num_wanted", ctypes.c_int32), ("skims", ctypes.c_int32),
                ("wanted", ctypes.c_void_p), ("texts", ctypes.c_void_p))


ARRAYS = {"start": np.int32, "end": np.int32, "ts_ns": np.int64, "dur_ns": np.int64, "name": np.int32,
          "category": np.int32, "thread": np.int32, "phase": np.uint8, "flags": np.uint8}


class Scanner:
    """Reads events of one file. Its arrays hold the rows of the last scan, `num_rows` of them."""

    def __init__(self, *, integers: Sequence[str] = (), texts: Sequence[str] = (), max_rows: int = 1 << 15,
                 skims: bool = False) -> None:
        """Nothing is read yet.

        Args:
            integers: Keys of `args` that become columns of integers.
            texts: Keys of `args` that become columns of interned texts.
            max_rows: Room for events of one scan.
            skims: Passes over `args` that are written over indented lines without a look inside: twice as fast, and
                damage in there goes unseen.
        """
        self.names, self.categories, self.threads, self.texts = Interner(), Interner(), Interner(), Interner()
        self.arrays: dict[str, Any] = {name: np.empty(max_rows, kind) for name, kind in ARRAYS.items()}
        self.spans = np.zeros((max_rows, ARGS + 1, 2), np.int32)
        self.integers: dict[str, Any] = {key: np.empty(max_rows, np.int64) for key in integers}
        self.interned: dict[str, Any] = {key: np.empty(max_rows, np.int32) for key in texts}
        self._keys = [key.encode() for key in (*integers, *texts)]
        columns = [*self.integers.values(), *self.interned.values()]
        self._wanted = (_Wanted * max(len(columns), 1))(*(
            _Wanted(key, len(key), index >= len(integers), _at(column), _at(column), None, 0)
            for index, (key, column) in enumerate(zip(self._keys, columns, strict=True))))
        self._room: Any = bytearray()
        self._columns = _Columns(
            max_rows=max_rows, num_rows=0, spans=_at(self.spans), names=self.names.handle,
            categories=self.categories.handle, threads=self.threads.handle, texts=self.texts.handle,
            num_wanted=len(columns), skims=skims, wanted=ctypes.addressof(self._wanted),
            **{name: _at(array) for name, array in self.arrays.items()})

    @property
    def num_rows(self) -> int:
        """Events of the last scan."""
        return int(self._columns.num_rows)

    def column(self, name: str) -> Any:
        """A view of one of `ARRAYS`, valid until the next scan."""
        return self.arrays[name][:self.num_rows]

    def scan(self, text: Text, at: int, end: int) -> tuple[Status, int]:
        """Reads events of the array that stands in `text`, from byte `at` on; gives how it ended and where to go on."""
        place = ctypes.c_int64(at)
        status = _library().scan_events(_address(text), end, ctypes.byref(place), ctypes.byref(self._columns))
        return Status(status), place.value

    def links(self, text: Text, ids: Interner) -> Any:
        """int64 a row: a number for what links it with others, an arrow's id or a slice's `bind_id`, else `NONE`."""
        found = np.empty(self.num_rows, np.int64)
        _library().link_rows(_address(text), ctypes.byref(self._columns), ids.handle, _at(found))
        return found

    def rewrite(self, text: Text, *, keep: Any, pid: Any, tid: Any, ts_ns: Any, dur_ns: Any, links: Any,
                ids: Interner, first_id: int) -> memoryview:
        """The events of the last scan with other numbers, joined by a comma and a newline; valid until the next call.

        Args:
            text: What was scanned.
            keep: uint8 a row; 0 leaves it out, 2 takes a slice's arrow away.
            pid: int64 a row.
            tid: int64 a row.
            ts_ns: int64 a row, `NONE` leaves it as it is.
            dur_ns: int64 a row, likewise.
            links: int64 a row, a new id instead of the one it has; `NONE` leaves that.
            ids: Takes in ids that are no small numbers.
            first_id: Added to every id.
        """
        rows = self.num_rows
        room = int(self.arrays["end"][rows - 1] - self.arrays["start"][0]) + ROOM_PER_ROW * rows if rows else 0
        if len(self._room) < room:
            self._room = np.empty(room + room // 4, np.uint8)
        columns = map(_at, (keep, pid, tid, ts_ns, dur_ns, links))
        length = _library().rewrite_events(_address(text), ctypes.byref(self._columns), *columns, ids.handle, first_id,
                                           _at(self._room))
        return memoryview(self._room)[:length]


def find_overlaps(order: Any, start: Any, dur: Any, thread: Any, *, tolerance: int, max_lanes: int) -> tuple[Any, Any]:
    """Slices that stick out of the one they begin in.

    Args:
        order: Row numbers by thread, start, longest first; int64.
        start: Start of each row in ns.
        dur: Duration of each row in ns.
        thread: int32 a row.
        tolerance: So much, in ns, may be cut of the slice's end or of those it sticks out of, whichever is less; else
            it goes to a lane of its own.
        max_lanes: Lanes of a thread, the thread itself included.

    Returns:
        Lane of each row, 0 for the thread itself; and new durations, -1 where the old one stays.
    """
    lane, cut = np.zeros(len(start), np.int32), np.full(len(start), -1, np.int64)
    found = _library().find_overlaps(len(order), *map(_at, (order, start, dur, thread)), tolerance, max_lanes,
                                     _at(lane), _at(cut))
    if found < 0:
        raise MemoryError
    return lane, cut


def _address(text: Text) -> Any:
    return text if isinstance(text, bytes) else _at(text)


def _at(array: Any) -> int:
    assert array.flags.c_contiguous
    return int(array.ctypes.data)


def source_id() -> int:
    """Of the source a library was built from, so that one that is out of date is not used."""
    return zlib.crc32(SOURCE.read_bytes())


_loaded: Any = None


def is_compiled() -> bool:
    """True where the fast engine was built and belongs to this source."""
    return _load() is not None


def _load() -> Any:
    global _loaded
    if _loaded is None and LIBRARY.exists() and "DISTPROF_REFERENCE_ENGINE" not in os.environ:
        try:
            library: Any = ctypes.CDLL(str(LIBRARY))
        except OSError:
            return None
        if library.source_id() & 0xFFFFFFFF == source_id():
            _declare(library)
            _loaded = library
    return _loaded


def _library() -> Any:
    return _loaded or _load()


def _declare(library: Any) -> None:
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    library.interner_new.restype = pointer
    library.interner_free.argtypes = [pointer]
    library.interner_count.argtypes, library.interner_count.restype = [pointer], integer
    library.interner_arena.argtypes, library.interner_arena.restype = [pointer], pointer
    library.interner_ends.argtypes, library.interner_ends.restype = [pointer], ctypes.POINTER(integer)
    library.scan_events.argtypes = [pointer, integer, pointer, pointer]
    library.link_rows.argtypes, library.link_rows.restype = [pointer] * 4, None
    library.rewrite_events.argtypes = [pointer, pointer, *[pointer] * 7, integer, pointer]
    library.rewrite_events.restype = integer
    library.find_overlaps.argtypes = [integer, *[pointer] * 4, integer, ctypes.c_int32, pointer, pointer]
    library.find_overlaps.restype = integer
