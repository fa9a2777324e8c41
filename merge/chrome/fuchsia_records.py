"""Converts Chrome events of one rank to records of Fuchsia's trace format.

Of the formats with exact nanoseconds it is the one that Perfetto loads fastest: a slice is one record, while in
Perfetto's own format it is two packets, which load more slowly than JSON. Of slices that begin in the same nanosecond,
the first in the file is the outer one, so records are kept in a file and sorted when all are known.

The format: https://fuchsia.dev/fuchsia-src/reference/tracing/trace-format. Records are words of 64 bits.
"""

from __future__ import annotations

import mmap
import struct
import tempfile
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import IO, Any, NamedTuple

import msgspec
import numpy as np

MAGIC = struct.pack("<Q", 0x0016547846040010)
TICKS = struct.pack("<QQ", 1 | 2 << 4, 10**9)
"""Initialization record: times are in nanoseconds."""
INSTANT, COUNTER, BEGIN, END, COMPLETE, FLOW_START = 0, 1, 2, 3, 4, 8
OF_PHASE = {"b": 5, "n": 6, "e": 7, "s": FLOW_START, "t": 9, "f": 10}
ENDS = -1 << 62
HALF, ARROW, MARK = 1, 2, 3
"""Sort keys within one nanosecond, after ends: slices, the longest first, by minus their duration; begins of slices
that are two events; arrows; marks and counters."""
MOST_TEXTS, MOST_THREADS = 30_000, 255
"""Number of texts and threads that are referred to by number; others are written inline."""
MOST_WORDS, NAME_BYTES = 4_000, 8_000
"""Maximum length of a record, in words, and of a name, in bytes; longer texts are cut."""
SHORT = 200
"""Maximum length, in characters, of values that are referred to by number."""
MOST_ARGS = 15
LEAST_INTEGER, MOST_INTEGER = -1 << 63, 1 << 63
BETWEEN_RANKS = 1 << 62
"""Added to ids of arrows that have only one end in a rank; ids within ranks are below."""
AT_ONCE = 1 << 16
"""Number of records that are joined at once."""
_WORD, _TWO, _FLOAT = struct.Struct("<Q"), struct.Struct("<QQ"), struct.Struct("<Qd")
_NAMES = ("process_name", "thread_name")


class _Event(msgspec.Struct):
    """An event as the merge writes it."""

    ph: str
    name: Any = ""
    cat: Any = ""
    pid: int = 0
    tid: int = 0
    ts: float = 0.0
    dur: float = 0.0
    args: Any = None
    id: Any = None
    id2: Any = None
    bind_id: Any = None
    flow_in: Any = False
    flow_out: Any = False


class _ArrowEnd(NamedTuple):
    """An end of an arrow that is not written yet."""

    phase: str
    at_ns: int
    head: int
    inline: bytes


_EVENTS = msgspec.json.Decoder(list[_Event])


class FuchsiaRecords:
    """Takes the events of a rank as JSON, and returns its records.

    Args:
        number: Number of the rank, counted from 1: each rank has its own numbers of texts and threads.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed by records)
        self._at, self._turn, self._length = array("q"), array("q"), array("i")
        self._texts: dict[str, int] = {}
        self._threads: dict[tuple[int, int], int] = {}
        self._heads: dict[tuple[Any, ...], tuple[int, bytes]] = {}
        self._arrows: dict[tuple[Any, ...], list[_ArrowEnd]] = defaultdict(list)
        self._links: dict[Any, int] = {}
        self._names: dict[tuple[int, int | None], str] = {}

    def add(self, text: bytes | memoryview) -> None:
        """Adds events given as JSON, joined by commas."""
        for event in _EVENTS.decode(b"[" + text + b"]"):
            at_ns = round(event.ts * 1000)
            if event.ph == "X":
                self._slice(event, at_ns)
            elif event.ph in "stf":
                head, inline = self._head(event, OF_PHASE[event.ph])
                self._arrows[event.id, event.cat, event.name].append(_ArrowEnd(event.ph, at_ns, head, inline))
            elif event.ph == "M":
                self._name(event)
            elif event.ph == "B":
                self._plain(event, at_ns, BEGIN, HALF)
            elif event.ph == "E":
                self._plain(event, at_ns, END, ENDS)
            elif event.ph in "iIR":
                self._plain(event, at_ns, INSTANT, MARK)
            elif event.ph == "C":
                self._counter(event, at_ns)
            elif event.ph in "bne":
                key = event.id if event.id2 is None else str(event.id2)
                self._plain(event, at_ns, OF_PHASE[event.ph], MARK, self._link(key, event.cat))

    def records(self) -> Iterator[bytes]:
        """Yields all records in pieces: names first, then sorted by time."""
        self._write_arrows()
        yield b"".join(self._described())
        turn, at_ns = np.frombuffer(self._turn, np.int64), np.frombuffer(self._at, np.int64)
        order = np.lexsort((turn, at_ns))  # stable, otherwise in the order of the trace
        at = np.append(0, np.cumsum(np.frombuffer(self._length, np.int32), dtype=np.int64))
        with self._file:
            if not len(order):
                return
            self._file.flush()
            with mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) as text:
                for first in range(0, len(order), AT_ONCE):
                    rows = order[first:first + AT_ONCE]
                    yield b"".join([text[begin:end] for begin, end in
                                    zip(at[rows].tolist(), at[rows + 1].tolist(), strict=True)])

    def _put(self, at_ns: int, turn: int, record: bytes) -> None:
        self._file.write(record)
        self._at.append(at_ns)
        self._turn.append(turn)
        self._length.append(len(record))

    def _head(self, event: _Event, kind: int) -> tuple[int, bytes]:
        """Returns the header of a record, without its length and argument count; and what follows its time."""
        key = kind, event.pid, event.tid, event.cat, event.name
        found = self._heads.get(key)
        if found is None:
            thread = self._threads.setdefault((event.pid, event.tid), len(self._threads) + 1)
            inline = b""
            if thread > MOST_THREADS:
                thread, inline = 0, _TWO.pack(event.pid, event.tid)
            category, of_category = self._text(str(event.cat))
            name, of_name = self._text(str(event.name))
            found = (4 | kind << 16 | thread << 24 | category << 32 | name << 48, inline + of_category + of_name)
            if len(self._heads) < 4 * MOST_TEXTS:
                self._heads[key] = found
        return found

    def _slice(self, event: _Event, at_ns: int) -> None:
        duration_ns = round(event.dur * 1000)
        self._plain(event, at_ns, COMPLETE, -duration_ns, at_ns + duration_ns)
        if event.bind_id is not None:
            phases = ("f" if event.flow_in else "") + ("s" if event.flow_out else "")
            for phase in "t" if phases == "fs" else phases:
                head, inline = self._head(event, OF_PHASE[phase])
                self._arrows[event.bind_id,].append(_ArrowEnd(phase, at_ns, head, inline))

    def _plain(self, event: _Event, at_ns: int, kind: int, turn: int, last: int | None = None) -> None:
        """Writes the record of an event; `last` is the final word that some kinds have."""
        head, inline = self._head(event, kind)
        count, args = self._args(event.args) if event.args else (0, b"")
        if len(args) > 8 * MOST_WORDS:  # keys of thousands of characters
            count, args = 0, b""
        tail = b"" if last is None else _WORD.pack(last)
        words = 2 + (len(inline) + len(args) + len(tail)) // 8
        self._put(at_ns, turn, _TWO.pack(head | words << 4 | count << 20, at_ns) + inline + args + tail)

    def _args(self, args: Any) -> tuple[int, bytes]:
        """Returns the number of arguments, and their records: lists and objects are text, surplus ones are joined."""
        if not isinstance(args, dict):
            return 0, b""
        items = [*args.items()]
        if len(items) > MOST_ARGS:
            items[MOST_ARGS - 1:] = [("more", dict(items[MOST_ARGS - 1:]))]
        pieces, room = [], 8 * (MOST_WORDS - 4 * len(items))
        for key, value in items:
            piece = self._arg(key, value, room)
            room -= len(piece)
            pieces.append(piece)
        return len(pieces), b"".join(pieces)

    def _arg(self, key: str, value: Any, room: int) -> bytes:
        name, inline = self._text(key)
        head = name << 16
        if isinstance(value, bool):
            return _WORD.pack(9 | 1 + len(inline) // 8 << 4 | head | value << 32) + inline
        if isinstance(value, int) and LEAST_INTEGER <= value < 2 * MOST_INTEGER:
            kind = 3 if value < MOST_INTEGER else 4
            return _with(_TWO.pack(kind | 2 + len(inline) // 8 << 4 | head, value & 0xFFFFFFFFFFFFFFFF), inline)
        if isinstance(value, float):
            return _with(_FLOAT.pack(5 | 2 + len(inline) // 8 << 4 | head, value), inline)
        if value is None:
            return _WORD.pack(0 | 1 + len(inline) // 8 << 4 | head) + inline
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        number, of_value = self._text(text, room)
        return _WORD.pack(6 | 1 + (len(inline) + len(of_value)) // 8 << 4 | head | number << 32) + inline + of_value

    def _text(self, text: str, room: int | None = None) -> tuple[int, bytes]:
        """Returns the number of a text, and its inline content; `room` is for values, of which short ones are numbered.
        """
        number = self._texts.get(text)
        if number is not None:
            return number, b""
        if text == "":
            return 0, b""
        if (room is None or len(text) <= SHORT) and len(self._texts) < MOST_TEXTS:
            number = self._texts[text] = len(self._texts) + 1
            return number, b""
        content = _cut(text, NAME_BYTES if room is None else max(room, 8))
        return 0x8000 | len(content), _padded(content)

    def _counter(self, event: _Event, at_ns: int) -> None:
        values = {key: value for key, value in (event.args if isinstance(event.args, dict) else {}).items()
                  if isinstance(value, int | float) and not isinstance(value, bool)}
        if values:
            event.args, event.tid = values, event.tid or event.pid
            self._plain(event, at_ns, COUNTER, MARK, 0 if event.id is None else self._link(event.id, event.name))

    def _link(self, *key: Any) -> int:
        return self._links.setdefault(key, len(self._links) + 1)

    def _write_arrows(self) -> None:
        """Writes arrows; one with several ends is split, as the first end closes it. Ids between ranks are kept."""
        number = self._number << 40
        for (key, *_), ends in self._arrows.items():
            starts, lasts = ([end for end in ends if end.phase == phase] for phase in "sf")
            if starts and lasts:
                branches = [[starts[0], last] for last in lasts] if len(starts) + len(lasts) == len(ends) == 1 + len(
                    lasts) else [ends]
                for branch in branches:
                    number += 1
                    self._write_ends(branch, number)
            else:
                self._write_ends(ends, BETWEEN_RANKS | (key if isinstance(key, int) else self._link(key)))

    def _write_ends(self, ends: Iterable[_ArrowEnd], number: int) -> None:
        for end in ends:
            words = 3 + len(end.inline) // 8
            self._put(end.at_ns, ARROW, _TWO.pack(end.head | words << 4, end.at_ns) + end.inline + _WORD.pack(number))

    def _name(self, event: _Event) -> None:
        """Notes the name of a process or thread."""
        if event.name in _NAMES and isinstance(event.args, dict):
            key = event.pid, None if event.name == "process_name" else event.tid
            self._names[key] = str(event.args.get("name", ""))

    def _described(self) -> Iterator[bytes]:
        """Yields records that define texts, threads and their names, before they are used by number."""
        names = {key: self._text(name) for key, name in self._names.items()}
        of_process, _ = self._text("process")
        yield _WORD.pack(1 << 4 | 1 << 16 | self._number << 20) + TICKS
        for text, number in self._texts.items():
            content = _cut(text, NAME_BYTES)
            padded = _padded(content)
            yield _WORD.pack(2 | 1 + len(padded) // 8 << 4 | number << 16 | len(content) << 32) + padded
        for key, number in self._threads.items():
            if number <= MOST_THREADS:
                yield _WORD.pack(3 | 3 << 4 | number << 16) + _TWO.pack(*key)
        for (pid, tid), (name, inline) in names.items():
            owner = b"" if tid is None else _TWO.pack(8 | 2 << 4 | of_process << 16, pid)
            words = 2 + (len(inline) + len(owner)) // 8
            kind, koid, count = (1, pid, 0) if tid is None else (2, tid, 1)
            yield _TWO.pack(7 | words << 4 | kind << 16 | name << 24 | count << 40, koid) + inline + owner


def _with(argument: bytes, inline: bytes) -> bytes:
    """Inserts an inline name between the first word and the value of an argument."""
    return argument[:8] + inline + argument[8:] if inline else argument


def _padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % 8)


def _cut(text: str, most: int) -> bytes:
    content = text.encode("utf-8", "replace")
    return content if len(content) <= most else content[:most - 3].decode("utf-8", "ignore").encode() + b"..."
