"""JSON values in the text of a trace: where one ends, and what it stands for, also where it is no strict JSON."""

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
"""Text without brackets, except in strings; a part of it, for `bracket_at`."""
_MEMBER = re.compile(rb'"(\w{1,64})"[ \t\r\n]*+:[ \t\r\n]*+("[^"\\]*+"|-?[0-9]{1,18}(?![0-9.eE]))')
ROOM = 100
"""Levels by which a value may still be nested deeper: where it is written later, it stands within other objects."""


def skip(text: bytes, at: int, what: bytes = BLANK) -> int:
    """The next place that holds another byte.

    Raises:
        IndexError: There is none.
    """
    while text[at] in what:
        at += 1
    return at


def value_end(text: bytes, at: int) -> int:
    """The place behind the value that begins at `at`, by its brackets and quotes alone.

    Raises:
        IndexError: The text ends inside of the value, or could.
        ValueError: No value begins there, or its brackets do not fit together.
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
        elif bracket in (b"", b'"'):  # a quote that is not closed
            raise IndexError
        elif bracket != closing.pop():
            raise ValueError
        at += 1
        if not closing:
            return at


def bracket_at(text: bytes, at: int, to_bracket: re.Pattern[bytes]) -> int:
    """Where text ends that a pattern matches in parts of at most `TURNS` turns.

    A pattern `(...)*+` would do without parts, but in Python 3.11.2, which is Debian 12's, it ends elsewhere when a
    turn fails within a string. `(...)*` remembers each turn, 60 bytes for a byte of text.
    """
    while True:
        begin, at = at, to_bracket.match(text, at).end()  # type: ignore[union-attr]  # it matches nothing too
        if at - begin < TURNS:
            return at


def key_at(text: bytes, at: int) -> tuple[bytes, int]:
    """The key at a place, with its quotes, and where its value begins.

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
    """What a value stands for, or the nearest there is where it holds NaN, huge numbers or bytes that are no UTF-8.

    Raises:
        ValueError: It is no JSON, or nested so deep that it could not be written again.
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
    """The members of an object as they are written; None where it is no strict JSON."""
    try:
        fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return {key: bytes(value) for key, value in fields.items()}


def short_members(text: bytes) -> dict[str, Any]:
    """Integers and strings of a damaged object or of those within it, by key; of equal keys the first one."""
    found: dict[str, Any] = {}
    for member in _MEMBER.finditer(text):
        try:
            found.setdefault(member[1].decode("ascii"), value_of(member[2]))
        except ValueError:
            continue
    return found


def string_of(text: bytes) -> str:
    """What a string stands for that is these bytes in a file, without quotation marks. Half a character is U+FFFD."""
    if b"\\" in text:
        try:
            found = json.loads(b'"%s"' % text)
            return found.encode("utf-8", "surrogatepass").decode("utf-8", "replace") if isinstance(found, str) else ""
        except ValueError:
            pass
    return text.decode("utf-8", "replace")
