"""JSON as programs write it: a text and a place in it come in, where the value ends and what is wrong with it go out.

The rules are those of scan.c. A text is bytes as latin-1: a character a byte, places in one are places in the other.
"""

from __future__ import annotations

import re

from distprof.merge.scan.rows import LATEST_NS, NONE, REPAIR

DEEPEST = 256
"""Levels that a value may nest."""
BLANK = r"[ \t\r\n]*+"
STRING = r'"[ !#-\[\]-\x7f]*+"'
_WORD_ENDS = r"(?![0-9A-Za-z.+\-])"
SCALAR = rf"(?:{STRING}|(?:-?(?:0|[1-9][0-9]{{0,17}}+)(?:\.[0-9]++)?(?:[eE][-+]?[0-9]++)?|true|false|null){_WORD_ENDS})"
"""Patterns of what needs no second look: strict JSON in ASCII, without escapes, numbers of no more than 64 bits."""

_BLANK = re.compile(BLANK)
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*+(?:\\["\\/bfnrt][^"\\\x00-\x1f]*+){0,1000}')
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4})')
_TOKEN = re.compile(r"[0-9A-Za-z.+\-]*+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][-+]?[0-9]++)?")
_LOOSE = re.compile(r"[-+]?(?:nan|inf|infinity|(?:[0-9]++\.?[0-9]*+|\.[0-9]++)(?:e[-+]?[0-9]++)?)", re.IGNORECASE)
_WORDS = frozenset(("true", "false", "null"))
_TIME = re.compile(r"(-?)([0-9]*+)(?:\.([0-9]*+))?(?:[eE]([-+]?)([0-9]++))?")
_INTEGER = re.compile(r"-?[0-9]++")


class Incomplete(Exception):
    """The text ends inside of the value."""


class Damaged(Exception):
    """It is no JSON."""


def array_of(value: str) -> str:
    """The pattern of an array of what the pattern `value` matches."""
    return rf"\[{BLANK}(?:{value}{BLANK}(?:,{BLANK}(?!\])|(?=\])))*\]"


def object_of(member: str) -> str:
    """The pattern of an object, of that of a key, a colon and a value."""
    return rf"\{{{BLANK}(?:{member}{BLANK}(?:,{BLANK}(?!\}})|(?=\}})))*\}}"


def member_of(value: str) -> str:
    """The pattern of any key with such a value."""
    return rf"{STRING}{BLANK}:{BLANK}{value}"


def value_of(levels: int) -> str:
    """The pattern of a value that nests no deeper than so many levels."""
    if not levels:
        return SCALAR
    inner = value_of(levels - 1)
    return rf"(?:{SCALAR}|{array_of(inner)}|{object_of(member_of(inner))})"


def skip_blank(text: str, at: int) -> int:
    """The next place that is not blank.

    Raises:
        Incomplete: There is none.
    """
    found = _BLANK.match(text, at)
    assert found is not None  # it matches nothing too
    if found.end() >= len(text):
        raise Incomplete
    return found.end()


def string_end(text: str, at: int) -> tuple[int, int]:
    """Behind the string whose quote stands at `at`; and `REPAIR` where it is no strict one."""
    at, flags = at + 1, 0
    while True:
        found = _PLAIN.match(text, at)
        assert found is not None  # it matches nothing too
        at = found.end()
        if at >= len(text):
            raise Incomplete
        if text[at] == '"':
            return at + 1, flags
        if text[at] != "\\":
            flags |= REPAIR
            at += 1
        elif at + 1 >= len(text):
            raise Incomplete
        else:
            flags |= 0 if _ESCAPE.match(text, at) else REPAIR
            at += 2


def scalar_end(text: str, at: int) -> tuple[int, int]:
    """Behind the number, true, false or null at `at`; and `REPAIR` where it is no strict one."""
    found = _TOKEN.match(text, at)
    assert found is not None  # it matches nothing too
    if found.end() >= len(text):
        raise Incomplete
    token = found.group()
    if _NUMBER.fullmatch(token):
        return found.end(), REPAIR if _is_above_64_bits(token) else 0
    if token in _WORDS:
        return found.end(), 0
    if _LOOSE.fullmatch(token):
        return found.end(), REPAIR
    raise Damaged


def key_end(text: str, at: int) -> tuple[int, int, int]:
    """Behind the key at `at`, behind its colon; and `REPAIR` where it is no strict one."""
    if text[at] != '"':
        raise Damaged
    end, flags = string_end(text, at)
    at = skip_blank(text, end)
    if text[at] != ":":
        raise Damaged
    return end, at + 1, flags


def value_end(text: str, at: int, deepest: int = DEEPEST) -> tuple[int, int]:
    """Behind the value at `at`, blanks before it passed over; and `REPAIR` where it is no strict JSON.

    Raises:
        Incomplete: The text ends before.
        Damaged: It is no JSON, or nests deeper than `deepest` levels.
    """
    closing: list[str] = []
    flags = 0
    while True:
        at = skip_blank(text, at)
        first = text[at]
        if first in "{[":
            if len(closing) == deepest:
                raise Damaged
            closing.append("}" if first == "{" else "]")
            at = skip_blank(text, at + 1)
            if text[at] != closing[-1]:
                at, more = _member(text, at, closing[-1])
                flags |= more
                continue
            closing.pop()
            at += 1
        else:
            at, more = string_end(text, at) if first == '"' else scalar_end(text, at)
            flags |= more
        at, more = _closed(text, at, closing)
        flags |= more
        if not closing:
            return at, flags


def _member(text: str, at: int, closing: str) -> tuple[int, int]:
    """Where the value of the next member is; in an object behind its key."""
    if closing == "]":
        return at, 0
    _, at, flags = key_end(text, at)
    return at, flags


def _closed(text: str, at: int, closing: list[str]) -> tuple[int, int]:
    """From behind a value to the next one in what is open; takes from `closing` what ends before."""
    flags = 0
    while closing:
        at = skip_blank(text, at)
        comma = text[at] == ","
        if comma:
            at = skip_blank(text, at + 1)
        if text[at] == closing[-1]:
            flags |= REPAIR if comma else 0
            closing.pop()
            at += 1
            continue
        if not comma:
            raise Damaged
        at, more = _member(text, at, closing[-1])
        return at, flags | more
    return at, flags


def skimmed_end(text: str, at: int) -> int | None:
    """Behind an object that holds no other and whose brace is the first on its line; None where it is another one."""
    brace = text.find("}", at + 1)
    if brace < 0:
        raise Incomplete
    line = text.rfind("\n", at, brace)
    if line < 0 or text[line + 1:brace].strip(" ") or text.find("{", at + 1, brace) >= 0:
        return None
    return brace + 1 if text[skip_blank(text, brace + 1)] in ",}" else None


def _is_above_64_bits(token: str) -> bool:
    digits = token.removeprefix("-")
    if len(digits) < 19 or not digits.isdecimal():
        return False
    return len(digits) > 19 or digits > ("9223372036854775808" if token != digits else "9223372036854775807")


def unquoted(text: str) -> str:
    """Without the quotes around it, where it has them."""
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text


def nanoseconds(text: str) -> int | None:
    """Microseconds, in any notation and quoted or not, as exact nanoseconds, what is less left out; None where it is no
    number, or `LATEST_NS` or more."""
    found = _TIME.fullmatch(unquoted(text))
    if found is None or not (found[2] or found[3]):
        return None
    digits, exponent = found[2] + (found[3] or ""), int((found[5] or "").lstrip("0")[:12] or 0)
    count = len(found[2]) + (-exponent if found[4] == "-" else exponent) + 3  # digits that make whole nanoseconds
    zeros = len(digits) - len(digits.lstrip("0"))
    if zeros == len(digits) or count <= zeros:
        return 0
    if count - zeros > 19:
        return None
    value = int(digits[zeros:count].ljust(count - zeros, "0"))
    if value >= LATEST_NS:
        return None
    return -value if found[1] else value


def integer(text: str) -> int:
    """An integer, quoted or not; `NONE` where it is none, or no 64 bits hold it."""
    text = unquoted(text)
    digits = text.removeprefix("-").lstrip("0")
    if not _INTEGER.fullmatch(text) or len(digits) > 19:
        return NONE
    value = int(digits or 0)
    return NONE if value > 2**63 - 1 else -value if text[0] == "-" else value
