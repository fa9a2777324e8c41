"""The engine in Python: chunks of JSON text come in, columns and rewritten text go out, as from scan.c but slower.

An event without anything odd is matched by one regular expression; what that does not match is read token by token.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from distprof.merge.scan.json_text import (
    BLANK,
    SCALAR,
    Damaged,
    Incomplete,
    integer,
    key_end,
    member_of,
    nanoseconds,
    object_of,
    skimmed_end,
    skip_blank,
    unquoted,
    value_end,
    value_of,
)
from distprof.merge.scan.reference_overlaps import find_innermost, find_overlaps
from distprof.merge.scan.reference_text import IS_LINKED, link, rewritten
from distprof.merge.scan.rows import (
    BAD_TIME,
    BIND_ID,
    ENCLOSING,
    FLOW_IN,
    FLOW_OUT,
    GLOBAL,
    ID,
    ID2,
    LATEST_NS,
    NON_ASCII,
    NONE,
    REPAIR,
    Rows,
    Status,
    Text,
)

__all__ = ["Interner", "Scanner", "find_innermost", "find_overlaps"]

PIECE = 1 << 20
"""Bytes of text that are looked at at once: a scan that ends early has not decoded all."""
FIELDS = ("pid", "tid", "ts", "dur", "id", "id2", "bind_id", "s", "args")
"""Keys of the fields whose place is kept, by number."""
MARKS = {"bp": ('"e"', ENCLOSING), "flow_in": ("true", FLOW_IN), "flow_out": ("true", FLOW_OUT)}
"""Keys that set a flag, with the value that does."""
_BETWEEN = re.compile(r"[, \t\r\n]*+")
_LEVELS = 3
"""Levels of arrays and objects in a value of `args` that the one regular expression knows."""
_KEYS = ("ph", "name", "cat", *FIELDS, *MARKS)
_NO_MARKS = [None] * len(MARKS)
_FIRST = 5
"""Group of the first of `FIELDS`; before are those of the whole, the event, its phase, name and category."""


@cache
def _event(*, skims: bool) -> re.Pattern[str]:
    """An event and, in groups, its phase, name and category without quotes and the values of `FIELDS`."""
    any_value, characters = value_of(_LEVELS), r"[ !#-\[\]-\x7f]"
    values = dict.fromkeys(_KEYS, f"({SCALAR})")
    values["ph"] = f'"({characters}){characters}*+"'
    values["name"] = values["cat"] = f'"({characters}*+)"'
    skimmed = rf"\{{(?:[^{{}}\n]*+\n)+ *+\}}(?={BLANK}[,}}])|" if skims else ""
    values["args"] = f"({skimmed}{object_of(member_of(any_value))})"
    values["id2"] = f"({object_of(member_of(any_value))})"
    known = "|".join(f'{key}"{BLANK}:{BLANK}{value}' for key, value in values.items())
    other = f'(?!(?:{"|".join(_KEYS)})"){characters}*+"{BLANK}:{BLANK}{any_value}'
    event = object_of(f'"(?:{known}|{other})')
    return re.compile(f"[, \\t\\r\\n]*+({event})")


@cache
def _members() -> re.Pattern[str]:
    """Keys and values of an object that `_event` has matched."""
    return re.compile(f'"([^"]*+)"{BLANK}:{BLANK}({value_of(_LEVELS)}){BLANK}[,}}]')


class Interner:
    """Equal texts get equal numbers, counted from 0 in the order in which they first appear."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def texts(self, first: int = 0) -> list[bytes]:
        """Those from number `first` on."""
        return [text.encode("latin-1") for text in list(self._numbers)[first:]]

    def number(self, text: str) -> int:
        """The number of a text, in latin-1."""
        return self._numbers.setdefault(text, len(self._numbers))


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
                inside: damage in there goes unseen. Only where nothing of `args` is asked for.
        """
        super().__init__(integers=integers, texts=texts, max_rows=max_rows)
        self.names, self.categories, self.threads, self.texts = Interner(), Interner(), Interner(), Interner()
        self.skims = skims and not self.integers and not self.interned
        self._max_rows = max_rows
        self._found = _Found(self)

    def scan(self, text: Text, at: int, end: int) -> tuple[Status, int]:
        """Reads events of the array that stands in `text`, from byte `at` on; gives how it ended and where to go on.

        Raises:
            ValueError: There is no such part of the text, or it is 2 GB or more.
        """
        self.check(text, at, end)
        self.num_rows, size = 0, PIECE
        while True:
            stop = min(end, at + size)
            status, done = self._read(bytes(text[at:stop]).decode("latin-1"))
            self._found.keep(at)
            if status is not Status.MORE or stop == end:
                return status, at + done
            size = PIECE if done else 2 * size
            at += done

    def links(self, text: Text, ids: Interner) -> Any:
        """int64 a row: a number for what links it with others, an arrow's id or a slice's `bind_id`, else `NONE`."""
        self.columns_of(text)
        found = np.full(self.num_rows, NONE)
        spans = self.spans[:self.num_rows]
        own = np.where(spans[:, ID, 1] > 0, ID, ID2)
        places = spans[np.arange(self.num_rows), np.where(IS_LINKED[self.column("phase")], own, BIND_ID)]
        rows = np.flatnonzero(places[:, 1] > 0)
        for row, (at, length) in zip(rows.tolist(), places[rows].tolist(), strict=True):
            found[row] = link(ids, bytes(text[at:at + length]).decode("latin-1"), 0)
        return found

    def rewrite(self, text: Text, *, keep: Any, pid: Any, tid: Any, ts_ns: Any, dur_ns: Any, links: Any,
                ids: Interner, first_id: int) -> memoryview:
        """The same as `compiled_engine.Scanner.rewrite`, where its arguments are described."""
        columns = self.columns_of(text, keep=(keep, np.uint8), pid=(pid, np.int64), tid=(tid, np.int64),
                                  ts_ns=(ts_ns, np.int64), dur_ns=(dur_ns, np.int64), links=(links, np.int64))
        rows = np.flatnonzero(columns[0])
        if not len(rows):
            return memoryview(b"")
        begin, end = int(self.arrays["start"][rows[0]]), int(self.arrays["end"][rows[-1]])
        part = bytes(text[begin:end])
        starts, ends, phases, flags = (self.arrays[name][rows].tolist() for name in ("start", "end", "phase", "flags"))
        spans = self.spans[rows].tolist()
        pieces: list[bytes] = []
        for row in zip(starts, ends, phases, flags, spans, *(column[rows].tolist() for column in columns), strict=True):
            pieces.append(b",\n")
            pieces += rewritten(part, begin, row, ids, first_id)
        return memoryview(b"".join(pieces[1:]))

    def _read(self, text: str) -> tuple[Status, int]:
        match, found, at = _event(skims=self.skims).match, self._found, 0
        room = self._max_rows - self.num_rows
        while True:
            event = match(text, at) if len(found) < room else None
            if event is not None:
                found.add_plain(event)
                at = event.end()
                continue
            at = _BETWEEN.match(text, at).end()  # type: ignore[union-attr]  # it matches nothing too
            if at >= len(text):
                return Status.MORE, at
            if text[at] == "]":
                return Status.ENDED, at + 1
            if len(found) == room:
                return Status.FULL, at
            if text[at] != "{":
                return Status.MALFORMED, at
            try:
                at = found.add_odd(text, at)
            except Incomplete:
                return Status.MORE, at
            except Damaged:
                return Status.MALFORMED, at


class _Found:
    """Rows that are being read: what each event holds, in lists."""

    def __init__(self, scanner: Scanner) -> None:
        self._rows = scanner
        self._places: list[Sequence[tuple[int, int]]] = []
        """Of each event what the groups of `_event` span."""
        self._columns: dict[str, list[int]] = {
            name: [] for name in ("name", "category", "thread", "phase", "flags", "ts_ns", "dur_ns")}
        self._wanted: dict[str, list[int]] = {key: [] for key in (*scanner.integers, *scanner.interned)}
        self._keys = {key.encode().decode("latin-1"): key for key in reversed(self._wanted)}
        self._threads: dict[tuple[str, str], int] = {}
        self._groups = (2, 3, 4, 5, 6, 7, 8, 12, 13 if self._wanted else 2, 14, 15, 16)

    def __len__(self) -> int:
        return len(self._places)

    def add_plain(self, event: re.Match[str]) -> None:
        """Takes in an event that `_event` has matched."""
        phase, name, category, pid, tid, ts, dur, scope, args, *marks = event.group(*self._groups)
        flags = GLOBAL if scope == '"g"' and phase in ("i", "I") else 0
        if marks != _NO_MARKS:
            flags |= sum(bit for mark, (value, bit) in zip(marks, MARKS.values(), strict=True) if mark == value)
        ts_ns = dur_ns = NONE
        if ts is not None:
            ts_ns = _plain_nanoseconds(ts)
            flags |= BAD_TIME if ts_ns == NONE else 0
        if dur is not None:
            dur_ns = _plain_nanoseconds(dur)
            flags |= BAD_TIME if dur_ns == NONE else 0
        self._add(event.regs, phase, name, category, pid or "", tid or "", ts_ns, dur_ns, flags)
        if self._wanted:
            self._add_wanted(_members().findall(args) if args else ())

    def add_odd(self, text: str, at: int) -> int:
        """Takes in any other event, whose brace stands at `at`; gives the place behind it.

        Raises:
            Incomplete: The text ends before.
            Damaged: It is no event.
        """
        begin, flags, wanted = at, 0, []
        places: dict[str, tuple[int, int]] = {}
        at = skip_blank(text, at + 1)
        while text[at] != "}":
            key_stop, value, more = key_end(text, at)
            key, value = text[at + 1:key_stop - 1], skip_blank(text, value)
            end = skimmed_end(text, value) if self._rows.skims and key == "args" and text[value] == "{" else None
            flags |= more
            if end is None:
                end, more = value_end(text, value)
                flags |= more if text[value:end].isascii() else more | NON_ASCII
            flags |= 0 if text[at:key_stop].isascii() else NON_ASCII
            places[key] = value, end
            if key == "args":
                wanted = list(_members_of(text, value)) if self._wanted and text[value] == "{" else []
            at = skip_blank(text, end)
            if text[at] == ",":
                at = skip_blank(text, at + 1)
                flags |= REPAIR if text[at] == "}" else 0
            elif text[at] != "}":
                raise Damaged
        values = {key: text[slice(*place)] for key, place in places.items() if key in _KEYS}
        self._add_values(values, [places.get(key, (-1, -1)) for key in ("", "", *_KEYS)], (begin, at + 1), flags)
        if self._wanted:
            self._add_wanted(wanted)
        return at + 1

    def _add_values(self, values: dict[str, str], places: list[tuple[int, int]], event: tuple[int, int],
                    flags: int) -> None:
        phase, category = values.get("ph", ""), values.get("cat")
        phase = phase[1] if len(phase) > 2 and phase[0] == '"' else ""
        flags |= GLOBAL if values.get("s") == '"g"' and phase in ("i", "I") else 0
        flags |= sum(bit for key, (value, bit) in MARKS.items() if values.get(key) == value)
        times = []
        for key in ("ts", "dur"):
            found = nanoseconds(values[key]) if key in values else NONE
            flags |= BAD_TIME if found is None else 0
            times.append(NONE if found is None else found)
        places[1] = event
        self._add(places, phase, unquoted(values.get("name", "")), None if category is None else unquoted(category),
                  values.get("pid", ""), values.get("tid", ""), times[0], times[1], flags)

    def _add(self, places: Sequence[tuple[int, int]], phase: str | None, name: str | None, category: str | None,
             pid: str, tid: str, ts_ns: int, dur_ns: int, flags: int) -> None:
        rows, columns = self._rows, self._columns
        thread = self._threads.get((pid, tid))
        if thread is None:
            thread = self._threads[pid, tid] = rows.threads.number(f"{pid} {tid}")
        self._places.append(places)
        columns["name"].append(rows.names.number(name or ""))
        columns["category"].append(-1 if category is None else rows.categories.number(category))
        columns["thread"].append(thread)
        columns["phase"].append(ord(phase) if phase else 0)
        columns["flags"].append(flags)
        columns["ts_ns"].append(ts_ns)
        columns["dur_ns"].append(dur_ns)

    def _add_wanted(self, members: Iterable[tuple[str, str]]) -> None:
        found = {self._keys[key]: value for key, value in members if key in self._keys}
        for key, values in self._wanted.items():
            value = found.get(key)
            if key in self._rows.integers:
                values.append(NONE if value is None else integer(value))
            else:
                values.append(-1 if value is None else self._rows.texts.number(unquoted(value)))

    def keep(self, base: int) -> None:
        """Moves the rows into the scanner's arrays; their places count from `base`."""
        rows, count = self._rows, len(self._places)
        if not count:
            return
        mine = slice(rows.num_rows, rows.num_rows + count)
        places = np.array(self._places, np.int64)
        rows.arrays["start"][mine], rows.arrays["end"][mine] = places[:, 1, 0] + base, places[:, 1, 1] + base
        begins, ends = (places[:, _FIRST:_FIRST + len(FIELDS), edge] for edge in (0, 1))
        rows.spans[mine, :, 0] = np.where(begins < 0, 0, begins + base)
        rows.spans[mine, :, 1] = ends - begins
        for name, values in self._columns.items():
            rows.arrays[name][mine] = values
            values.clear()
        for key, values in self._wanted.items():
            (rows.integers if key in rows.integers else rows.interned)[key][mine] = values
            values.clear()
        self._places.clear()
        rows.num_rows += count


def _plain_nanoseconds(text: str) -> int:
    """Times of strict JSON, most of which have three decimals; `NONE` where it is none."""
    if text[-4:-3] == ".":
        try:
            value = int(text[:-4] + text[-3:])
        except ValueError:  # 1.5e3
            pass
        else:
            return value if -LATEST_NS < value < LATEST_NS else NONE
    found = nanoseconds(text)
    return NONE if found is None else found


def _members_of(text: str, at: int) -> Iterator[tuple[str, str]]:
    """Keys and values of the object at `at`, which is whole."""
    at = skip_blank(text, at + 1)
    while text[at] != "}":
        key_stop, value, _ = key_end(text, at)
        value = skip_blank(text, value)
        end, _ = value_end(text, value)
        yield text[at + 1:key_stop - 1], text[value:end]
        at = skip_blank(text, end)
        if text[at] == ",":
            at = skip_blank(text, at + 1)
