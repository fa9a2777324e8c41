"""Events that are no strict JSON: their text comes in, the nearest strict JSON goes out."""

from __future__ import annotations

import re

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[-+.\w]+|,(?=[ \t\r\n]*[}\]])', re.DOTALL)
_NUMBER = re.compile(rb"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_ODD_NUMBER = re.compile(rb"\+?(-?)0*(\d*)(?:\.(\d*))?([eE][+-]?\d+)?")
_INFINITE = {b"nan": b'"NaN"', b"-nan": b'"NaN"', b"inf": b'"Infinity"', b"infinity": b'"Infinity"',
             b"-inf": b'"-Infinity"', b"-infinity": b'"-Infinity"'}
_ESCAPE = re.compile(rb"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CONTROL = re.compile(rb"[\x00-\x1f]")
_PAIR = re.compile(rb"\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})")
_SHORT = {9: b"\\t", 10: b"\\n", 13: b"\\r"}


def repaired(event: bytes) -> bytes:
    """The event itself where it is strict JSON in UTF-8 that every viewer reads, else a copy that is.

    Control characters are escaped, and backslashes that begin no escape; surrogates become the character they stand
    for (a half one U+FFFD), bytes that are no UTF-8 U+FFFD. NaN, infinities, integers beyond 64 bits and what else is
    no number become strings, which Perfetto reads as numbers where it wants numbers. 01.5 becomes 1.5. A comma too
    many goes.
    """
    fixed = event if valid_utf8(event) else event.decode("utf-8", "replace").encode()
    fixed = _TOKEN.sub(_token, fixed)
    return event if fixed == event else fixed


def valid_utf8(text: bytes) -> bool:
    """True where the text is UTF-8."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _token(match: re.Match[bytes]) -> bytes:
    token = match.group()
    if token == b",":
        return b""
    if token.startswith(b'"'):
        token = _ESCAPE.sub(_escape, token) if b"\\" in token else token
        token = _CONTROL.sub(lambda found: _SHORT.get(found.group()[0], b"\\u%04x" % found.group()[0]), token)
        return _surrogates(token) if b"\\u" in token else token
    return token if token in (b"true", b"false", b"null") else _number(token)


def _number(token: bytes) -> bytes:
    if not _NUMBER.fullmatch(token):
        odd = _ODD_NUMBER.fullmatch(token)
        if odd is None or not (odd[2] or odd[3] or b"0" in token):
            return _INFINITE.get(token.lower(), b'"%s"' % token)
        token = b"%s%s%s%s" % (odd[1], odd[2] or b"0", b"." + odd[3] if odd[3] else b"", odd[4] or b"")
    if not token.lstrip(b"-").isdigit() or (len(token) < 21 and -(2**63) <= int(token) < 2**63):
        return token
    return b'"%s"' % token


def _escape(match: re.Match[bytes]) -> bytes:
    after = match[1]
    return match[0] if len(after) > 1 or after in b'"\\/bfnrt' else b"\\" + match[0]


def _surrogates(token: bytes) -> bytes:
    if not re.search(rb"\\u[dD][89a-fA-F]", token):
        return token

    def character(match: re.Match[bytes]) -> bytes:
        high, low = (int(match.group(group), 16) for group in (1, 2))
        return chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00)).encode()

    escaped = token.replace(b"\\\\", b"\x00")  # a backslash that stands for itself begins no escape
    escaped = _PAIR.sub(character, escaped)
    return re.sub(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}", "\ufffd".encode(), escaped).replace(b"\x00", b"\\\\")
