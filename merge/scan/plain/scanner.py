"""The scanner in Python: msgspec decodes each event, and its arguments are passed through as bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from msgspec import Raw

from distprof.arrays import Array, Integers
from distprof.merge.scan.damage import behind_damage, next_event
from distprof.merge.scan.plain.event_text import (
    DamagedError,
    IncompleteError,
    event_end,
    integer,
    microseconds,
    nanoseconds,
    unquoted,
)
from distprof.merge.scan.repair import BACKSLASH_LAST, repaired
from distprof.merge.scan.scanned_columns import (
    BAD_TIME,
    ENCLOSING,
    FLOW_IN,
    FLOW_OUT,
    GLOBAL,
    IDS_FOR_SMALL,
    LINKED,
    NO_ARROW,
    NON_ASCII,
    NONE,
    REPAIR,
    ScannedColumns,
    Status,
    Text,
)

_BETWEEN = re.compile(rb"[, \t\r\n]*+")
_LARGE = re.compile(rb"[0-9]{19}")
"""Matches large integers and, with escapes, surrogates: strict JSON that msgspec accepts but viewers do not."""


_OBJECT = msgspec.json.Decoder(dict[str, Raw])
_MARKS = (("bp", b'"e"', ENCLOSING), ("flow_in", b"true", FLOW_IN), ("flow_out", b"true", FLOW_OUT))
"""Key, the value that sets a flag, and the flag."""


class PlainInterner:
    """Gives equal texts equal numbers, counted from 0 in the order of first appearance."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def texts(self, first: int = 0) -> list[bytes]:
        """Returns the texts from number `first` on."""
        return list(self._numbers)[first:]

    def number(self, text: bytes) -> int:
        """Returns the number of a text."""
        return self._numbers.setdefault(text, len(self._numbers))


class PlainScanner(ScannedColumns):
    """Reads events of one file; `Scanner` describes its methods. Nothing is skimmed."""

    def __init__(self, *, integers: Sequence[str] = (), texts: Sequence[str] = (), max_rows: int = 1 << 15,
                 skims: bool = False) -> None:
        super().__init__(integers=integers, texts=texts, max_rows=max_rows)
        self.names, self.categories, self.threads = PlainInterner(), PlainInterner(), PlainInterner()
        self.texts, self.ids = PlainInterner(), PlainInterner()

    def scan(self, text: Text, at: int, end: int) -> tuple[Status, int]:
        """See `Scanner`."""
        self.check(text, at, end)
        part, rows = bytes(text[at:end]), list[tuple[int, ...]]()
        self.num_damaged = self.lost_bytes = 0
        status, place = self._read(part, rows)
        self.num_rows = len(rows)
        targets = [*self.arrays.values(), *self.integers.values(), *self.interned.values()]
        for target, values in zip(targets, zip(*rows, strict=True), strict=bool(rows)):
            target[:len(rows)] = values
        for name in ("start", "end"):
            self.column(name)[:] += at
        return status, at + place

    def _read(self, part: bytes, rows: list[tuple[int, ...]]) -> tuple[Status, int]:
        place = 0
        while True:
            place = _BETWEEN.match(part, place).end()  # type: ignore[union-attr]  # it matches nothing too
            first = part[place:place + 1]
            if not first:
                return Status.MORE, place
            if first == b"]":
                return Status.ENDED, place + 1
            if len(rows) == self.max_rows:
                return Status.FULL, place
            try:
                behind = event_end(part, place)
                rows.append(self._row(part[place:behind], place, behind))
            except IncompleteError:
                return Status.MORE, place
            except (DamagedError, msgspec.DecodeError):
                found = behind_damage(part, place) if self.recovers else None
                if found is None:
                    return Status.MALFORMED, place
                behind = found
                self.num_damaged, self.lost_bytes = self.num_damaged + 1, self.lost_bytes + behind - place
            place = behind

    def _row(self, text: bytes, start: int, end: int) -> tuple[int, ...]:
        """Returns the values of the columns, in the order of `ARRAYS`, then those of `args`."""
        event, flags = _decoded(text)
        phase, ts, dur = (event.get(key, b"") for key in ("ph", "ts", "dur"))
        code = phase[1] if len(phase) > 2 and phase[:1] == b'"' else 0
        ts_ns, dur_ns = nanoseconds(ts), nanoseconds(dur)
        flags |= BAD_TIME if (ts and ts_ns == NONE) or (dur and dur_ns == NONE) else 0
        flags |= GLOBAL if event.get("s") == b'"g"' and code in b"iI" else 0
        flags |= sum(bit for key, value, bit in _MARKS if event.get(key) == value)
        if "bind_id" not in event:
            flags &= ~(FLOW_IN | FLOW_OUT)
        return (start, end, ts_ns, dur_ns, self.names.number(unquoted(event.get("name", b""))),
                self.categories.number(unquoted(event["cat"])) if "cat" in event else -1,
                self.threads.number(event.get("pid", b"") + b" " + event.get("tid", b"")), code, flags,
                *self._wanted(event.get("args", b"")))

    def _wanted(self, args: bytes) -> list[int]:
        if not self.integers and not self.interned:
            return []
        found = _inner_fields(args) if args.startswith(b"{") else {}
        return [*(integer(found[key]) if key in found else NONE for key in self.integers),
                *(self.texts.number(unquoted(found[key])) if key in found else -1 for key in self.interned)]

    def next_event(self, text: Text, at: int, end: int) -> int | None:
        """See `Scanner`."""
        self.check(text, at, end)
        return next_event(text, at, end)

    def links(self, text: Text) -> Integers:
        """See `Scanner`."""
        self.columns_of(text)
        found = np.full(self.num_rows, NONE)
        for row, (event, phase) in enumerate(zip(self._events(text), self.column("phase").tolist(), strict=True)):
            literal = event.get("id", event.get("id2")) if phase in LINKED else event.get("bind_id")
            if literal is not None:
                found[row] = self._link(literal)
        return found

    def _events(self, text: Text) -> Iterator[dict[str, bytes]]:
        for start, end in zip(self.column("start").tolist(), self.column("end").tolist(), strict=True):
            yield _decoded(bytes(text[start:end]))[0]

    def _link(self, literal: bytes) -> int:
        """Returns the number for an id: its own value if that is small, otherwise one assigned in order."""
        text = unquoted(literal)
        value = NONE if text.startswith(b"-") else integer(text)
        return value if NONE != value < IDS_FOR_SMALL else IDS_FOR_SMALL + self.ids.number(text)

    def rewrite(self, text: Text, *, keep: Array, pid: Integers, tid: Integers, ts_ns: Integers, dur_ns: Integers,
                links: Integers, first_id: int) -> memoryview:
        """See `Scanner`."""
        columns = self.columns_of(text, keep=(keep, np.uint8), pid=(pid, np.int64), tid=(tid, np.int64),
                                  ts_ns=(ts_ns, np.int64), dur_ns=(dur_ns, np.int64), links=(links, np.int64))
        rows = zip(self._events(text), self.column("phase").tolist(), self.column("flags").tolist(),
                   *(column.tolist() for column in columns), strict=True)
        return memoryview(b",\n".join([
            _encoded(event | self._numbers(event, phase, flags, kept, new, first_id))
            for event, phase, flags, kept, *new in rows if kept]))

    def _numbers(self, event: dict[str, bytes], phase: int, flags: int, kept: int, new: list[int],
                 first_id: int) -> dict[str, bytes]:
        """Returns the fields of an event that change, and those that must be present."""
        pid, tid, ts_ns, dur_ns, link = new
        changed = {"pid": b"%d" % pid, "tid": b"%d" % tid}
        if "ts" in event and ts_ns != NONE:
            changed["ts"] = microseconds(ts_ns)
        if dur_ns != NONE:
            changed["dur"] = microseconds(dur_ns)
        if flags & GLOBAL:
            changed["s"] = b'"p"'
        for key in [key for key in event if key == "bind_id" or (key == "id" and phase in LINKED)]:
            changed[key] = b"%d" % (first_id + self._link(event[key]) if link == NONE else link)
        if "bind_id" in event and kept == NO_ARROW:
            changed["bind_id"] = b"null"
        inner = _inner_fields(event["id2"]) if event.get("id2", b"").startswith(b"{") else {}
        if "global" in inner:
            inner["global"] = b'"%d"' % (first_id + self._link(inner["global"]))
            changed["id2"] = _encoded(inner)
        return changed


def _decoded(text: bytes) -> tuple[dict[str, bytes], int]:
    """Returns the literals of an event by key, and those of its flags that concern the text.

    Raises:
        msgspec.DecodeError: It is not JSON and cannot be repaired.
    """
    flags = 0 if text.isascii() else NON_ASCII
    if b"\\u" not in text and BACKSLASH_LAST not in text and not _LARGE.search(text):
        try:
            return _fields(text), flags
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
    strict = repaired(text)
    return _fields(strict), flags | (REPAIR if strict != text else 0)


def _fields(text: bytes) -> dict[str, bytes]:
    return {key: bytes(value) for key, value in _OBJECT.decode(text).items()}


def _inner_fields(text: bytes) -> dict[str, bytes]:
    """Decodes an object within an event that was decoded, in which msgspec did not check the keys."""
    try:
        return _fields(text)
    except UnicodeDecodeError:
        return _fields(repaired(text))


def _encoded(fields: dict[str, bytes]) -> bytes:
    return msgspec.json.encode({key: Raw(value) for key, value in fields.items()})
