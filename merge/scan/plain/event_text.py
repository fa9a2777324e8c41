"""The text of an event: where it ends, and what its literals stand for."""

from __future__ import annotations

import re
from decimal import ROUND_DOWN, Context

from distprof.merge.scan.json_values import TURNS, bracket_at
from distprof.merge.scan.scanned_columns import LATEST_NS, NONE

DEEPEST = 257
"""Levels that an event may nest, its own brace included."""
_CLOSING = {b"{": b"}", b"[": b"]"}
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+'
"""A string without its last quote."""
_BLANK = rb"[ \t\r\n]*+"
_TO_BRACKET = re.compile(rb'(?:[^"{}\[\]]++|%b"%b(?=[,:}\]])){0,%d}' % (_STRING, _BLANK, TURNS), re.DOTALL)
"""Text without brackets, except in strings, in parts for `bracket_at`; a string is followed by what may follow one."""
_CUT = re.compile(rb"(?:" + _STRING + rb'(?:\\|"' + _BLANK + rb")?)?\Z", re.DOTALL)
"""What such text ends with where a file is cut, or has not been read further."""
_INTEGER = re.compile(rb"-?0*[0-9]{1,19}")
_NUMBER = re.compile(rb"-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_EXACT = Context(prec=60, rounding=ROUND_DOWN, traps=[])


class IncompleteError(Exception):
    """The text ends inside of the event."""


class DamagedError(Exception):
    """It is no JSON."""


def event_end(text: bytes, at: int) -> int:
    """Place behind the event whose brace is at `at`, by its brackets and quotes alone.

    Raises:
        IncompleteError: The text ends before.
        DamagedError: Brackets or quotes do not fit together.
    """
    closing: list[bytes] = []
    while True:
        at = bracket_at(text, at, _TO_BRACKET)
        bracket = text[at:at + 1]
        if bracket in _CLOSING and len(closing) < DEEPEST:
            closing.append(_CLOSING[bracket])
        elif closing and bracket == closing[-1]:
            closing.pop()
            if not closing:
                return at + 1
        elif _CUT.match(text, at):
            raise IncompleteError
        else:
            raise DamagedError
        at += 1


def unquoted(literal: bytes) -> bytes:
    """Without the quotes around it, where it has them."""
    return literal[1:-1] if len(literal) > 1 and literal[:1] == literal[-1:] == b'"' else literal


def integer(literal: bytes) -> int:
    """An integer, quoted or not; `NONE` where it is none, or no 64 bits hold it."""
    text = unquoted(literal)
    value = int(text) if _INTEGER.fullmatch(text) else NONE
    return value if abs(value) < 2**63 else NONE


def nanoseconds(literal: bytes) -> int:
    """Exact nanoseconds of microseconds in any notation, quoted or not; `NONE` for others and from `LATEST_NS` on."""
    text = unquoted(literal)
    if not _NUMBER.fullmatch(text):
        return NONE
    value = _EXACT.scaleb(_EXACT.create_decimal(text.decode()), 3)
    return int(value) if value.copy_abs() < LATEST_NS else NONE


def microseconds(ns: int) -> bytes:
    """The literal that viewers read as this time."""
    return (b"-" if ns < 0 else b"") + b"%d.%03d" % divmod(abs(ns), 1000)
