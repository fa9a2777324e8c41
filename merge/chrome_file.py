"""A Chrome trace file as scanned chunks: bytes of the file come in, scanned text and the file's other keys go out.

Memory is that of a few chunks, however long the file is. Damage is passed over and counted, never an exception.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from distprof.errors import DataError
from distprof.merge.engine import NON_ASCII, REPAIR, Scanner, Status, Text
from distprof.merge.repair import repaired, valid_utf8

READ_BYTES = 1 << 17
"""What is asked for at a time: small enough to stay in the caches until it is copied."""
CHUNK_BYTES = 1 << 21
"""What is scanned at a time."""
MOST_METADATA_BYTES = 64 << 20
"""Keys beside the events may take so much text: more is no trace."""
_DECODER = json.JSONDecoder()
_BLANK = " \t\r\n"


@dataclass(slots=True)
class Losses:
    """What of a file could not be read as it is."""

    damaged_events: int = 0
    """Places at which something stood that is no event; reading went on behind it."""
    lost_bytes: int = 0
    """Bytes in such places, and behind the last whole event of a file that was cut."""
    repaired_events: int = 0
    """Events that were no strict JSON and were made so: NaN, control characters, integers above 64 bits, half
    surrogates, bytes that are no UTF-8."""
    is_cut: bool = False
    """True where the file ends inside of the events."""


@dataclass(slots=True)
class ChromeFile:
    """One pass over a file."""

    name: str
    """For messages."""
    chunks: Iterable[bytes]
    scanner: Scanner
    metadata: dict[str, Any] = field(default_factory=dict)
    """Top-level keys except the events; whole only after the last chunk."""
    losses: Losses = field(default_factory=Losses)
    num_bytes: int = 0
    """Text that was read."""

    def scanned(self) -> Iterator[Text]:
        """Scans chunk after chunk and yields its text while the scanner holds its rows.

        Raises:
            DataError: It is no Chrome trace at all.
        """
        source = self._counted()
        begin = self._head(source)
        if begin is None:
            return
        window = Window(begin)
        at = 0
        while True:
            status, behind = self.scanner.scan(window.text, at, window.end)
            if self.scanner.num_rows:
                yield self._strict(window.text, at, behind)
            at = behind
            if status is Status.ENDED and self._is_end(window.cut(at, at + 80)):
                self._keys(source, window.cut(at, window.end), first=False)
                return
            if status is Status.FULL:
                continue
            if status is not Status.MORE:
                at = self._resynchronise(window.cut(0, window.end), at)
                if at < window.end:
                    continue
            if not window.slide(at, source):
                self._cut(window.end)
                return
            at = 0

    def _counted(self) -> Iterator[bytes]:
        for chunk in self.chunks:
            self.num_bytes += len(chunk)
            yield chunk

    def _strict(self, text: Text, at: int, behind: int) -> Text:
        """The text that was scanned, as strict JSON in UTF-8; scanned again where it was not."""
        scanner = self.scanner
        flags = scanner.column("flags")
        if not (flags & (REPAIR | NON_ASCII)).any():
            return text
        if not (flags & REPAIR).any() and valid_utf8(bytes(text[at:behind])):
            return text
        pieces = []
        for start, end, odd in zip(scanner.column("start").tolist(), scanner.column("end").tolist(),
                                   (flags & (REPAIR | NON_ASCII)).tolist(), strict=True):
            event = bytes(text[start:end])
            fixed = repaired(event) if odd else event
            self.losses.repaired_events += fixed is not event
            pieces.append(fixed)
        fresh = b",".join(pieces) + b"]"
        scanner.scan(fresh, 0, len(fresh))
        return fresh

    def _is_end(self, behind: bytes) -> bool:
        """False for the end of an array that reading fell into behind damage."""
        behind = behind.lstrip()
        return not self.losses.damaged_events or not behind or (behind[:1] == b"," and (
            behind[1:].lstrip()[:1] == b'"')) or (behind[:1] == b"}" and not behind[1:].strip())

    def _resynchronise(self, text: bytes, at: int) -> int:
        """Where the next event may begin, behind one that is damaged; the end of the text where none does."""
        self.losses.damaged_events += 1
        found = at + 1
        while True:
            found = text.find(b"{", found)
            if found < 0:
                self.losses.lost_bytes += len(text) - at
                return len(text)
            before, behind = text[max(found - 80, at):found].rstrip(), text[found + 1:found + 80].lstrip()
            if before.endswith(b",") and before[:-1].rstrip().endswith(b"}") and behind.startswith(b'"'):
                self.losses.lost_bytes += found - at
                return found
            found += 1

    def _cut(self, num_bytes: int) -> None:
        self.losses.is_cut = True
        self.losses.lost_bytes += num_bytes

    # --- keys beside the events --------------------------------------------------------------------------------

    def _head(self, source: Iterator[bytes]) -> bytes | None:
        """The text from the first event on; None where the file ends without events."""
        text = next(source, b"")
        while text and not text.strip():
            text = next(source, b"")
        begin = text.lstrip()[:1]
        if begin == b"[":
            return text.lstrip()[1:]
        if begin != b"{":
            shown = text[:40].decode("ascii", "replace")
            raise DataError(f"expected a Chrome trace in {self.name}, found "
                            + (f"text that begins with {shown!r}" if text else "an empty file"),
                            hint="a trace begins with { or [")
        return self._keys(source, text.lstrip()[1:], first=True)

    def _keys(self, source: Iterator[bytes], text: bytes, *, first: bool) -> bytes | None:
        """Reads `"key": value` until the events, which it gives the text of, or until the end."""
        view, done = text.decode("latin-1"), 0  # one character a byte: places in one are places in the other
        while True:
            try:
                place = _skip(view, done, _BLANK + ",")
                if view[place] == "}":
                    break
                key, place = _DECODER.raw_decode(view, place)
                place = _skip(view, place, _BLANK)
                _expect(view[place] == ":" and isinstance(key, str))
                place = _skip(view, place + 1, _BLANK)
                if key == "traceEvents" and view[place] == "[":
                    _expect(first)
                    return view[place + 1:].encode("latin-1")
                value, place = _DECODER.raw_decode(view, place)
                view[_skip(view, place, _BLANK)]  # a number may go on behind the chunk
                self.metadata[key] = _utf8(value)
                done = place
            except (ValueError, IndexError, RecursionError) as error:
                more = next(source, b"")
                if not more or len(view) - done > MOST_METADATA_BYTES:
                    self._no_more(error, first=first)
                    return None
                view, done = view[done:] + more.decode("latin-1"), 0
        if first:
            raise DataError(f"expected traceEvents in {self.name}, found {', '.join(self.metadata) or 'nothing'}",
                            hint="it is no Chrome trace")
        return None

    def _no_more(self, error: Exception, *, first: bool) -> None:
        if first:
            raise DataError(f"expected traceEvents in {self.name}, found none: the file "
                            + ("is nested too deeply" if isinstance(error, RecursionError) else "is cut or no JSON"),
                            hint="it is no Chrome trace, or was cut before its first event")
        self.losses.is_cut = True


class Window:
    """The part of a text that is being scanned; it slides along the text in a buffer that stays."""

    def __init__(self, begin: bytes) -> None:
        self.text: Any = np.empty(max(2 * CHUNK_BYTES, 2 * len(begin)), np.uint8)
        self.end = 0
        self._append(begin)

    def cut(self, start: int, end: int) -> bytes:
        """A copy of a part."""
        return bytes(self.text[start:min(end, self.end)])

    def slide(self, at: int, source: Iterator[bytes]) -> bool:
        """Drops what is before `at` and goes on; False where the text ends. An event longer than all makes it grow."""
        left = self.end - at
        self.text[:left] = self.text[at:self.end].copy() if left > at else self.text[at:self.end]
        self.end = left
        # where what is left is the beginning of one long event, scanning it again has to pay
        wanted = self.end + max(CHUNK_BYTES, left)
        while self.end < wanted and (chunk := next(source, b"")):
            self._append(chunk)
        return self.end > left

    def _append(self, chunk: bytes) -> None:
        end = self.end + len(chunk)
        if end > len(self.text):
            larger = np.empty(2 * end, np.uint8)
            larger[:self.end] = self.text[:self.end]
            self.text = larger
        self.text[self.end:end] = np.frombuffer(chunk, np.uint8)
        self.end = end


def _skip(text: str, at: int, what: str) -> int:
    while text[at] in what:
        at += 1
    return at


def _expect(condition: bool) -> None:  # noqa: FBT001
    if not condition:
        raise ValueError


def _utf8(value: Any) -> Any:
    """What was decoded a character a byte, as the text it is."""
    if isinstance(value, str):
        return value.encode("latin-1", "replace").decode("utf-8", "replace") if not value.isascii() else value
    if isinstance(value, dict):
        return {_utf8(key): _utf8(item) for key, item in value.items()}
    return [_utf8(item) for item in value] if isinstance(value, list) else value
