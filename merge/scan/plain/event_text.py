"""Finds where the text of an event ends, and decodes its literals."""

from __future__ import annotations

import re
from decimal import ROUND_DOWN, Context

from distprof.merge.scan.json_values import TURNS, bracket_at
from distprof.merge.scan.scanned_columns import LATEST_NS, NONE

DEEPEST = 257
"""Maximum nesting depth of an event, including its own braces."""
_CLOSING = {b"{": b"}", b"[": b"]"}
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+'
"""A string without its closing quote."""
_BLANK = rb"[ \t\r\n]*+"
_TO_BRACKET = re.compile(rb'(?:[^"{}\[\]]++|%b"%b(?=[,:}\]])){0,%d}' % (_STRING, _BLANK, TURNS), re.DOTALL)
"""Matches text without brackets, except in strings, which must be followed by what may follow one; for `bracket_at`."""
_CUT = re.compile(rb"(?:" + _STRING + rb'(?:\\|"' + _BLANK + rb")?)?\Z", re.DOTALL)
"""Matches the end of such text if a file is truncated there, or has not been read further."""
_INTEGER = re.compile(rb"-?0*[0-9]{1,19}")
_NUMBER = re.compile(rb"-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_EXACT = Context(prec=60, rounding=ROUND_DOWN, traps=[])


class IncompleteError(Exception):
    """The text ends inside the event."""


class DamagedError(Exception):
    """The text is not JSON."""


def event_end(text: bytes, at: int) -> int:
    """Returns the place after the event whose brace is at `at`, judging only by its brackets and quotes.

    Raises:
        IncompleteError: The text ends before.
        DamagedError: Brackets or quotes do not match.
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
    """Returns the literal without the quotes around it, if it has them."""
    return literal[1:-1] if len(literal) > 1 and literal[:1] == literal[-1:] == b'"' else literal


def integer(literal: bytes) -> int:
    """Returns an integer, quoted or not; `NONE` if it is not an integer or does not fit into 64 bits."""
    text = unquoted(literal)
    value = int(text) if _INTEGER.fullmatch(text) else NONE
    return value if abs(value) < 2**63 else NONE


def nanoseconds(literal: bytes) -> int:
    """Converts microseconds in any notation, quoted or not, to exact ns; `NONE` for others and from `LATEST_NS` on."""
    text = unquoted(literal)
    if not _NUMBER.fullmatch(text):
        return NONE
    value = _EXACT.scaleb(_EXACT.create_decimal(text.decode()), 3)
    return int(value) if value.copy_abs() < LATEST_NS else NONE


def microseconds(ns: int) -> bytes:
    """Returns the literal, in microseconds, that viewers read as this time."""
    return (b"-" if ns < 0 else b"") + b"%d.%03d" % divmod(abs(ns), 1000)
