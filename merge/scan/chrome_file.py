"""A Chrome trace file as scanned chunks: bytes of the file come in, scanned text and the file's other keys go out.

Memory is that of a few chunks, however long the file is. Damage is passed over and counted, never an exception.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from distprof.errors import DataError
from distprof.merge.scan.engine import Scanner
from distprof.merge.scan.repair import repaired, valid_utf8
from distprof.merge.scan.scanned_columns import LATEST_NS, NON_ASCII, REPAIR, Status, Text
from distprof.merge.scan.window import AHEAD_BYTES, Feed, Window

MOST_METADATA_BYTES = 64 << 20
"""Keys beside the events may take so much text: more is no trace."""
MOST_EVENT_BYTES = 64 << 20
"""A longer event is damage: a bracket that is never closed takes in all that follows."""
_BEGIN = re.compile(rb'\{[ \t\r\n]*"(ph"[ \t\r\n]*:)?')
"""An object, and whether it begins as most writers begin events."""
_BRACE = re.compile(rb'("ph"[ \t\r\n]*:)|"(?:[^"\\]|\\.)*"|[{}]', re.DOTALL)
_ELEMENT = re.compile(rb'((?:"(?:[^"\\]|\\.)*"|[^\s{}\[\]",:]+)\s*)[,\]]', re.DOTALL)
"""Strings, numbers and words in the array of events."""
_DECODER = json.JSONDecoder(strict=False)  # control characters in strings are none of our business
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
    _is_array: bool = False
    """True for a trace without keys beside the events; such may lack the bracket at the end."""
    _source: Feed = field(init=False)

    def __post_init__(self) -> None:
        self._source = Feed(self.chunks)

    @property
    def num_bytes(self) -> int:
        """Text that was read."""
        return self._source.num_bytes

    def scanned(self) -> Iterator[Text]:
        """Scans chunk after chunk and yields its text while the scanner holds its rows.

        Raises:
            DataError: It is no Chrome trace at all.
        """
        source = self._source
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
            if status is Status.FULL:
                continue
            if status is Status.ENDED:
                at = window.look_ahead(at - 1, source)  # the bracket, behind which an event may follow
                if self._is_end(window, at):
                    if not self._is_array:
                        self._keys(source, window.cut(at + 1, window.end), first=False)
                    return
            elif status is Status.MORE and window.end - at < MOST_EVENT_BYTES:
                if window.slide(at, source):
                    at = 0
                    continue
                at = 0
                if next_event(window, 0) is None:
                    self.losses.is_cut = window.end > 0 or not self._is_array
                    self.losses.lost_bytes += window.end
                    return
            at = self._behind_damage(window, at, source)

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

    def _is_end(self, window: Window, at: int) -> bool:
        """False where more events come: for a bracket that damage made, or that reading fell into behind it."""
        view = window.cut(at + 1, at + AHEAD_BYTES).decode("latin-1")
        try:
            if not view[_keys_end(view):].strip():
                return True
        except IndexError:
            return True  # the text ends before
        except (ValueError, RecursionError):
            pass  # no keys, or they go on
        return next_event(window, at) is None

    def _behind_damage(self, window: Window, at: int, source: Feed) -> int:
        """Where the next event begins behind what is none; the end of the text where none does."""
        self.losses.damaged_events += 1
        at = window.look_ahead(at, source)
        num_bytes = _element_bytes(window.cut(at, at + AHEAD_BYTES))
        if num_bytes:
            self.losses.lost_bytes += num_bytes
            return at + num_bytes
        while True:
            found = next_event(window, at)
            if found is not None:
                self.losses.lost_bytes += found - at
                return found
            passed = max(at, window.end - AHEAD_BYTES)  # the next event may begin before the end of the window
            self.losses.lost_bytes += passed - at
            at = 0
            if not window.slide(passed, source):
                self.losses.lost_bytes += window.end
                return window.end

    # --- keys beside the events --------------------------------------------------------------------------------

    def _head(self, source: Feed) -> bytes | None:
        """The text from the first event on; None where the file ends without events."""
        text = source.next()
        while text and not text.strip():
            text = source.next()
        begin = text.lstrip()[:1]
        if begin == b"[":
            self._is_array = True
            return text.lstrip()[1:]
        if begin != b"{":
            shown = text[:40].decode("ascii", "replace")
            raise DataError(f"expected a Chrome trace in {self.name}, found "
                            + (f"text that begins with {shown!r}" if text else "an empty file"),
                            hint="a trace begins with { or [")
        return self._keys(source, text.lstrip()[1:], first=True)

    def _keys(self, source: Feed, text: bytes, *, first: bool) -> bytes | None:
        """Reads `"key": value` until the events, which it gives the text of, or until the end."""
        view, done = text.decode("latin-1"), 0  # one character a byte: places in one are places in the other
        while True:
            try:
                place = _skip(view, done, _BLANK + ",")
                if view[place] == "}":
                    break
                begin, (key, place) = place, _DECODER.raw_decode(view, place)
                key_text = view[begin:place]
                place = _skip(view, place, _BLANK)
                _expect(view[place] == ":" and isinstance(key, str))
                begin = place = _skip(view, place + 1, _BLANK)
                if key == "traceEvents" and view[place] == "[":
                    _expect(first)
                    return view[place + 1:].encode("latin-1")
                _, place = _DECODER.raw_decode(view, place)
                view[_skip(view, place, _BLANK)]  # a number may go on behind the chunk
                self.metadata[_value(key_text)] = _value(view[begin:place])
                done = place
            except (ValueError, IndexError, RecursionError) as error:
                more = _more(source, len(view) - done)
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


def _more(source: Feed, num_bytes: int) -> bytes:
    """So much text or more, if there is any: a long value is read again from its begin, which has to pay."""
    chunks, left = [], num_bytes
    while (chunk := source.next()):
        chunks.append(chunk)
        left -= len(chunk)
        if left <= 0:
            break
    return b"".join(chunks)


def next_event(window: Window, at: int) -> int | None:
    """Where behind `at` an event seems to begin: behind another one and a comma, or with its phase."""
    for found in _BEGIN.finditer(window.text, at + 1, window.end):
        before = window.cut(max(at, found.start() - 256, 0), found.start()).rstrip()
        follows = before.endswith(b",") and before[:-1].rstrip().endswith(b"}")
        if found[1] or (follows and _has_phase(window.cut(found.start(), found.start() + AHEAD_BYTES))):
            return found.start()
    return None


def _has_phase(text: bytes) -> bool:
    """Whether the object that the text begins with is an event, and not a part of one."""
    depth = 0
    for found in _BRACE.finditer(text):
        if found[1] and depth == 1:
            return True
        depth += {b"{": 1, b"}": -1}.get(found[0], 0)
        if not depth:
            return False
    return False


def _element_bytes(text: bytes) -> int:
    """Bytes of a whole value that is no object, at the beginning of the text; 0 where there is none."""
    element = _ELEMENT.match(text)
    if element is not None:
        return element.end(1)
    view = text.decode("latin-1")
    try:
        place = _skip(view, 0, _BLANK)
        place = _skip(view, _DECODER.raw_decode(view, place)[1], _BLANK) if view[place] == "[" else 0
    except (ValueError, IndexError, RecursionError):
        return 0
    return place if view[place] in ",]" else 0


def _keys_end(view: str) -> int:
    """Behind the brace that ends `"key": value` and the like.

    Raises:
        IndexError: The text ends before.
        ValueError: It is nothing of the kind.
    """
    place = 0
    while view[place := _skip(view, place, _BLANK)] != "}":
        _expect(view[place] == ",")
        key, place = _DECODER.raw_decode(view, _skip(view, place + 1, _BLANK))
        place = _skip(view, place, _BLANK)
        _expect(view[place] == ":" and isinstance(key, str))
        _, place = _DECODER.raw_decode(view, _skip(view, place + 1, _BLANK))
    return place + 1


def _skip(text: str, at: int, what: str) -> int:
    while text[at] in what:
        at += 1
    return at


def _expect(condition: bool) -> None:  # noqa: FBT001
    if not condition:
        raise ValueError


def _value(raw: str) -> Any:
    """JSON that was read a character a byte, as the text it is; halves of characters become U+FFFD."""
    text = raw if raw.isascii() else raw.encode("latin-1").decode("utf-8", "replace")
    return _whole(_DECODER.decode(text))


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_whole(key): _whole(item) for key, item in value.items()}
    return [_whole(item) for item in value] if isinstance(value, list) else value


def base_ns_of(metadata: Mapping[str, Any]) -> int:
    """What is added to every time of a file that has these keys."""
    try:
        number = int(metadata.get("baseTimeNanoseconds") or 0)
    except (TypeError, ValueError, OverflowError):
        return 0
    return number if abs(number) < LATEST_NS else 0
