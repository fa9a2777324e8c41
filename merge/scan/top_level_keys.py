"""Keys beside the events of a trace file: `"schemaVersion": 1`, `"distributedInfo": {...}`."""

from __future__ import annotations

import json
from typing import Any

from distprof.errors import DataError
from distprof.merge.scan.text_window import TextFeed

MOST_METADATA_BYTES = 64 << 20
"""Keys beside the events may take so much text: more is no trace."""
DECODER = json.JSONDecoder(strict=False)  # control characters in strings do no harm
BLANK = " \t\r\n"


class TopLevelKeys:
    """Reads the keys before and behind the events. Text is read as latin-1: a character a byte, places are the same."""

    def __init__(self, name: str, feed: TextFeed) -> None:
        self.values: dict[str, Any] = {}
        self.is_array = False
        """True for a trace without keys beside the events; such may lack the bracket at the end."""
        self.is_cut = False
        """True where the file ends inside of the keys behind the events."""
        self._name, self._feed = name, feed

    def read_until_events(self) -> bytes:
        """Returns the text from the first event on.

        Raises:
            DataError: It is no Chrome trace.
        """
        text = self._feed.next()
        while text and not text.strip():
            text = self._feed.next()
        begin = text.lstrip()[:1]
        if begin == b"[":
            self.is_array = True
            return text.lstrip()[1:]
        if begin != b"{":
            shown = text[:40].decode("ascii", "replace")
            raise DataError(f"expected a Chrome trace in {self._name}, found "
                            + (f"text that begins with {shown!r}" if text else "an empty file"),
                            hint="a trace begins with { or [")
        try:
            events = self._read(text.lstrip()[1:], until_events=True)
        except (ValueError, IndexError, RecursionError) as error:
            raise DataError(f"expected traceEvents in {self._name}, found none: the file "
                            + ("is nested too deeply" if isinstance(error, RecursionError) else "is cut or no JSON"),
                            hint="it is no Chrome trace, or was cut before its first event") from error
        if events is None:
            raise DataError(f"expected traceEvents in {self._name}, found {', '.join(self.values) or 'nothing'}",
                            hint="it is no Chrome trace")
        return events

    def read_after_events(self, text: bytes) -> None:
        """Reads what stands behind the bracket that ends the events, of which `text` is the first part."""
        if self.is_array:
            return
        try:
            self._read(text, until_events=False)
        except (ValueError, IndexError, RecursionError):
            self.is_cut = True

    def _read(self, text: bytes, *, until_events: bool) -> bytes | None:
        """Reads `"key": value` and the like; returns the text behind `"traceEvents": [`, None where the object ends.

        Raises:
            ValueError, IndexError, RecursionError: Neither comes.
        """
        view, done = text.decode("latin-1"), 0
        while True:
            try:
                place = skip(view, done, BLANK + ",")
                if view[place] == "}":
                    return None
                key, begin = _key(view, place)
                if key == "traceEvents" and view[begin] == "[":
                    _expect(until_events)
                    return view[begin + 1:].encode("latin-1")
                _, end = DECODER.raw_decode(view, begin)
                view[skip(view, end, BLANK)]  # a number may go on behind the chunk
                self.values[_plain(key)] = _plain(DECODER.decode(_as_utf8(view[begin:end])))
                done = end
            except (ValueError, IndexError, RecursionError):
                more = self._more(len(view) - done)
                if not more or len(view) - done > MOST_METADATA_BYTES:
                    raise
                view, done = view[done:] + more.decode("latin-1"), 0

    def _more(self, num_bytes: int) -> bytes:
        """So much text or more, if there is any: a long value is read again from its begin, which has to pay."""
        chunks, left = [], num_bytes
        while (chunk := self._feed.next()):
            chunks.append(chunk)
            left -= len(chunk)
            if left <= 0:
                break
        return b"".join(chunks)


def _key(view: str, place: int) -> tuple[str, int]:
    """The key at a place, and where its value begins.

    Raises:
        ValueError: There is none.
        IndexError: The text ends before.
    """
    key, end = DECODER.raw_decode(view, place)
    colon = skip(view, end, BLANK)
    _expect(view[colon] == ":" and isinstance(key, str))
    return DECODER.decode(_as_utf8(view[place:end])), skip(view, colon + 1, BLANK)


def ends_keys(text: bytes) -> bool:
    """True where keys, a brace and blanks are all that follows the events, or the text ends before that is clear."""
    view, place = text.decode("latin-1"), 0
    try:
        while view[place := skip(view, place, BLANK)] != "}":
            _expect(view[place] == ",")
            _, begin = _key(view, skip(view, place + 1, BLANK))
            _, place = DECODER.raw_decode(view, begin)
    except IndexError:
        return True
    except (ValueError, RecursionError):  # no keys, or they go on
        return False
    return not view[place + 1:].strip()


def skip(text: str, at: int, what: str) -> int:
    """The next place that holds another character.

    Raises:
        IndexError: There is none.
    """
    while text[at] in what:
        at += 1
    return at


def _expect(condition: bool) -> None:  # noqa: FBT001
    if not condition:
        raise ValueError


def _as_utf8(raw: str) -> str:
    """Text that was read a character a byte; halves of characters become U+FFFD."""
    return raw if raw.isascii() else raw.encode("latin-1").decode("utf-8", "replace")


def _plain(value: Any) -> Any:
    """Without halves of surrogates, which cannot be encoded."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value
