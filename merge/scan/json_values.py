"""Finds where a JSON value in the text of a trace ends, and decodes values, even if they are not strict JSON."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from distprof.merge.scan.repair import repaired

BLANK = b" \t\r\n"
_CLOSING = {b"{": b"}", b"[": b"]"}
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_SCALAR = re.compile(rb'[^\x00- "{}\[\],:]++')
TURNS = 1000
_TO_BRACKET = re.compile(rb'(?:[^"{}\[\]]++|"[^"\\]*+(?:\\.[^"\\]*+)*+"){0,%d}' % TURNS, re.DOTALL)
"""Matches text without brackets, except in strings; only a part of it at a time, for `bracket_at`."""
_MEMBER = re.compile(rb'"(\w{1,64})"[ \t\r\n]*+:[ \t\r\n]*+("[^"\\]*+"|-?[0-9]{1,18}(?![0-9.eE]))')
ROOM = 100
"""Levels by which a value must be nestable further, because it is later written inside other objects."""


def skip(text: bytes, at: int, what: bytes = BLANK) -> int:
    """Returns the next place that holds another byte.

    Raises:
        IndexError: There is none.
    """
    while text[at] in what:
        at += 1
    return at


def value_end(text: bytes, at: int) -> int:
    """Returns the place after the value that begins at `at`, judging only by its brackets and quotes.

    Raises:
        IndexError: The text ends inside the value, or might.
        ValueError: No value begins there, or its brackets do not match.
    """
    first = text[at:at + 1]
    if first in _CLOSING:
        return _brackets_end(text, at)
    found = (_STRING if first == b'"' else _SCALAR).match(text, at)
    if found is None and first not in (b'"', b""):
        raise ValueError
    if found is None or (first != b'"' and found.end() == len(text)):
        raise IndexError
    return found.end()


def _brackets_end(text: bytes, at: int) -> int:
    closing: list[bytes] = []
    while True:
        at = bracket_at(text, at, _TO_BRACKET)
        bracket = text[at:at + 1]
        if bracket in _CLOSING:
            closing.append(_CLOSING[bracket])
        elif bracket in (b"", b'"'):  # an unclosed quote
            raise IndexError
        elif bracket != closing.pop():
            raise ValueError
        at += 1
        if not closing:
            return at


def bracket_at(text: bytes, at: int, to_bracket: re.Pattern[bytes]) -> int:
    """Returns where the text ends that a pattern matches in parts of at most `TURNS` repetitions.

    A pattern `(...)*+` would need no parts, but in Python 3.11.2, which Debian 12 has, it ends elsewhere when a
    repetition fails within a string. `(...)*` remembers each repetition, at 60 bytes per byte of text.
    """
    while True:
        begin, at = at, to_bracket.match(text, at).end()  # type: ignore[union-attr]  # it matches nothing too
        if at - begin < TURNS:
            return at


def key_at(text: bytes, at: int) -> tuple[bytes, int]:
    """Returns the key at a place, with its quotes, and where its value begins.

    Raises:
        IndexError: The text ends before.
        ValueError: There is none.
    """
    if text[at] != ord('"'):
        raise ValueError
    end = value_end(text, at)
    colon = skip(text, end)
    if text[colon] != ord(":"):
        raise ValueError
    return text[at:end], skip(text, colon + 1)


def value_of(text: bytes) -> Any:
    """Decodes a value, or the nearest valid one if it contains NaN, huge numbers or bytes that are not UTF-8.

    Raises:
        ValueError: It is not JSON, or nested so deeply that it could not be written again.
    """
    deep = b"[" * ROOM + text + b"]" * ROOM
    try:
        return _inside(msgspec.json.decode(deep))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        pass
    except RecursionError as error:
        raise ValueError from error
    try:
        return _inside(json.loads(repaired(deep)))
    except RecursionError as error:
        raise ValueError from error


def _inside(value: Any) -> Any:
    for _ in range(ROOM):
        (value,) = value
    return value


def object_of(text: bytes) -> dict[str, bytes] | None:
    """Returns the members of an object as they are written; None if it is not strict JSON."""
    try:
        fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return {key: bytes(value) for key, value in fields.items()}


def short_members(text: bytes) -> dict[str, Any]:
    """Returns integers and strings in a damaged object, at any depth, by key; of equal keys the first one."""
    found: dict[str, Any] = {}
    for member in _MEMBER.finditer(text):
        try:
            found.setdefault(member[1].decode("ascii"), value_of(member[2]))
        except ValueError:
            continue
    return found


def string_of(text: bytes) -> str:
    """Decodes the bytes of a JSON string without its quotation marks. An unpaired surrogate becomes U+FFFD."""
    if b"\\" in text:
        try:
            found = json.loads(b'"%s"' % text)
            return found.encode("utf-8", "surrogatepass").decode("utf-8", "replace") if isinstance(found, str) else ""
        except ValueError:
            pass
    return text.decode("utf-8", "replace")
