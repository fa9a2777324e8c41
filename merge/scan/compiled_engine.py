"""The engine in C: chunks of JSON text come in, columns and rewritten text go out.

scan.c does the work, compiled when distprof is installed; it runs without the interpreter's lock.
"""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from distprof.merge.scan.rows import ROOM_PER_ROW, Rows, Status, Text, slices_of, times_of

SOURCE = Path(__file__).with_name("scan.c")
LIBRARY = Path(__file__).with_name("_scan.so")
NO_MEMORY = 4
"""How a scan ended, beside `Status`."""


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
        since = int(ends[first - 1]) if first else 0
        places = (ends[first:] - since).tolist()
        arena = (ctypes.c_char * places[-1]).from_address(_library().interner_arena(self._handle) + since).raw
        return [arena[begin:end] for begin, end in zip([0, *places], places, strict=False)]

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


class Scanner(Rows):
    """Reads events of one file."""

    def __init__(self, *, integers: Sequence[str] = (), texts: Sequence[str] = (), max_rows: int = 1 << 15,
                 skims: bool = False) -> None:
        """Nothing is read yet.

        Args:
            integers: Keys of `args` that become columns of integers.
            texts: Keys of `args` that become columns of interned texts.
            max_rows: Room for events of one scan.
            skims: Passes over `args` that hold no object and end with a brace on a line of its own, without a look
                inside: twice as fast, and damage in there goes unseen. Only where nothing of `args` is asked for.
        """
        super().__init__(integers=integers, texts=texts, max_rows=max_rows)
        self.names, self.categories, self.threads, self.texts = Interner(), Interner(), Interner(), Interner()
        self._keys = [key.encode() for key in (*integers, *texts)]
        columns = [*self.integers.values(), *self.interned.values()]
        self._wanted = (_Wanted * max(len(columns), 1))(*(
            _Wanted(key, len(key), index >= len(integers), _at(column), _at(column), None, 0)
            for index, (key, column) in enumerate(zip(self._keys, columns, strict=True))))
        self._room: Any = np.empty(0, np.uint8)
        self._columns = _Columns(
            max_rows=max_rows, num_rows=0, spans=_at(self.spans), names=self.names.handle,
            categories=self.categories.handle, threads=self.threads.handle, texts=self.texts.handle,
            num_wanted=len(columns), skims=skims, wanted=ctypes.addressof(self._wanted),
            **{name: _at(array) for name, array in self.arrays.items()})

    def scan(self, text: Text, at: int, end: int) -> tuple[Status, int]:
        """Reads events of the array that stands in `text`, from byte `at` on; gives how it ended and where to go on.

        Raises:
            ValueError: There is no such part of the text, or it is 2 GB or more.
        """
        self.check(text, at, end)
        place = ctypes.c_int64(at)
        status = _library().scan_events(_address(text), end, ctypes.byref(place), ctypes.byref(self._columns))
        self.num_rows = int(self._columns.num_rows)
        if status == NO_MEMORY:
            raise MemoryError
        return Status(status), place.value

    def links(self, text: Text, ids: Interner) -> Any:
        """int64 a row: a number for what links it with others, an arrow's id or a slice's `bind_id`, else `NONE`."""
        self.columns_of(text)
        found = np.empty(self.num_rows, np.int64)
        if not _library().link_rows(_address(text), ctypes.byref(self._columns), ids.handle, _at(found)):
            raise MemoryError
        return found

    def rewrite(self, text: Text, *, keep: Any, pid: Any, tid: Any, ts_ns: Any, dur_ns: Any, links: Any,
                ids: Interner, first_id: int) -> memoryview:
        """The events of the last scan with other numbers, joined by a comma and a newline; valid until the next call.

        Args:
            text: What was scanned.
            keep: uint8 a row; 0 leaves it out, `NO_ARROW` takes its arrow away.
            pid: int64 a row.
            tid: int64 a row.
            ts_ns: int64 a row, `NONE` leaves it as it is.
            dur_ns: int64 a row, likewise.
            links: int64 a row, an id instead of the one it has; `NONE` gives that a new number.
            ids: Takes in ids that are no small numbers.
            first_id: Added to every id.
        """
        columns = self.columns_of(text, keep=(keep, np.uint8), pid=(pid, np.int64), tid=(tid, np.int64),
                                  ts_ns=(ts_ns, np.int64), dur_ns=(dur_ns, np.int64), links=(links, np.int64))
        rows = self.num_rows
        room = int(self.arrays["end"][rows - 1] - self.arrays["start"][0]) + ROOM_PER_ROW * rows if rows else 0
        if len(self._room) < room:
            self._room = np.empty(room + room // 4, np.uint8)
        length = _library().rewrite_events(_address(text), ctypes.byref(self._columns), *map(_at, columns), ids.handle,
                                           first_id, _at(self._room))
        if length < 0:
            raise MemoryError
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
    columns = slices_of(order, start, dur, thread)
    if max_lanes < 1:
        raise ValueError(f"expected a lane or more, found {max_lanes}")
    lane, cut = np.zeros(len(start), np.int32), np.full(len(start), -1, np.int64)
    found = _library().find_overlaps(len(order), *map(_at, columns), tolerance, max_lanes, _at(lane), _at(cut))
    if found < 0:
        raise MemoryError
    return lane, cut


def find_innermost(start: Any, end: Any, at: Any) -> Any:
    """Of each time, the number of the last slice that has begun by then and not ended before; -1 without one.

    Args:
        start: Start of each slice, int64, ascending.
        end: End of each.
        at: Times, int64, ascending.
    """
    columns = times_of(start, end, at)
    found = np.empty(len(at), np.int64)
    if not _library().find_innermost(len(start), *map(_at, columns[:2]), len(at), _at(columns[2]), _at(found)):
        raise MemoryError
    return found


def _address(text: Text) -> Any:
    return text if isinstance(text, bytes) else _at(text)


def _at(array: Any) -> int:
    assert array.flags.c_contiguous
    return int(array.ctypes.data)


def source_id() -> int:
    """Of the source a library was built from, so that one that is out of date is not used."""
    return zlib.crc32(SOURCE.read_bytes())


_loaded: Any = None


def is_built() -> bool:
    """True where the library was built and belongs to this source."""
    return _load() is not None


def _load() -> Any:
    global _loaded
    if _loaded is None and LIBRARY.exists():
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
    library.link_rows.argtypes = [pointer] * 4
    library.rewrite_events.argtypes = [pointer, pointer, *[pointer] * 7, integer, pointer]
    library.rewrite_events.restype = integer
    library.find_overlaps.argtypes = [integer, *[pointer] * 4, integer, ctypes.c_int32, pointer, pointer]
    library.find_overlaps.restype = integer
    library.find_innermost.argtypes = [integer, pointer, pointer, integer, pointer, pointer]
