"""Reads a damaged trace with Python's json alone: the events that are whole before the first thing that is not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

MOST_LEVELS = 256
BLANK = re.compile(r"[ \t\r\n]*")
HALVES = re.compile("[\ud800-\udfff]")
"""Bytes that are no UTF-8, as they were decoded."""


class NotStrictError(ValueError):
    """It is not what RFC 8259 calls JSON, or nested too deeply."""


def _refuse(constant: str) -> Any:
    raise NotStrictError(constant)


DECODER = json.JSONDecoder(parse_constant=_refuse)


def strict(text: bytes) -> Any:
    """Parses what every JSON parser takes: UTF-8, no NaN."""
    return json.loads(text.decode("utf-8", "strict"), parse_constant=_refuse)


def whole_events(text: str) -> Iterator[dict[str, Any]]:
    """The objects in the array of events, up to the first place that is no strict JSON."""
    try:
        yield from _walk(text, _begin_of_events(text))
    except (ValueError, IndexError, RecursionError):
        return


def _value(text: str, at: int) -> tuple[Any, int]:
    value, end = DECODER.raw_decode(text, at)
    if _depth(value) > MOST_LEVELS or HALVES.search(text, at, end):
        raise NotStrictError
    return value, end


def _depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return max(map(_depth, inner), default=0) + isinstance(value, dict | list)


def _skip(text: str, at: int) -> int:
    return BLANK.match(text, at).end()  # type: ignore[union-attr]  # it matches nothing too


def _begin_of_events(text: str) -> int:
    at = _skip(text, 0)
    if text[at] == "[":
        return at + 1
    if text[at] != "{":
        raise NotStrictError
    at = _skip(text, at + 1)
    while True:
        key, at = _value(text, at)
        at = _skip(text, at)
        if text[at] != ":" or not isinstance(key, str):
            raise NotStrictError
        at = _skip(text, at + 1)
        if key == "traceEvents" and text[at] == "[":
            return at + 1
        _, at = _value(text, at)
        at = _skip(text, at)
        if text[at] != ",":
            raise NotStrictError
        at = _skip(text, at + 1)


def _walk(text: str, at: int) -> Iterator[dict[str, Any]]:
    while True:
        at = _skip(text, at)
        if text[at] == "]":
            return
        event, at = _value(text, at)
        if not isinstance(event, dict):
            return
        yield event
        at = _skip(text, at)
        if text[at] != ",":
            return
        at += 1
