"""Events that are no strict JSON: their text comes in, the nearest strict JSON goes out."""

from __future__ import annotations

import re

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\bNaN\b|-?\b(?:Infinity|inf|nan)\b|-?\d{19,}(?![\d.eE])', re.DOTALL)
_CONTROL = re.compile(rb"[\x00-\x1f]")
_PAIR = re.compile(rb"\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})")
_SHORT = {9: b"\\t", 10: b"\\n", 13: b"\\r"}


def repaired(event: bytes) -> bytes:
    """The event itself where it is strict JSON in UTF-8 that every viewer reads, else a copy that is.

    NaN and infinities become null, control characters are escaped, surrogates become the character they stand for (a
    half one U+FFFD), integers beyond 64 bits become strings, bytes that are no UTF-8 U+FFFD.
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
    if token.startswith(b'"'):
        token = _CONTROL.sub(lambda found: _SHORT.get(found.group()[0], b"\\u%04x" % found.group()[0]), token)
        return _surrogates(token) if b"\\u" in token else token
    if token.lstrip(b"-")[:1].isdigit():
        return token if -(2**63) <= int(token) < 2**63 else b'"%s"' % token
    return b"null"


def _surrogates(token: bytes) -> bytes:
    if not re.search(rb"\\u[dD][89a-fA-F]", token):
        return token

    def character(match: re.Match[bytes]) -> bytes:
        high, low = (int(match.group(group), 16) for group in (1, 2))
        return chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00)).encode()

    escaped = token.replace(b"\\\\", b"\x00")  # a backslash that stands for itself begins no escape
    escaped = _PAIR.sub(character, escaped)
    return re.sub(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}", "\ufffd".encode(), escaped).replace(b"\x00", b"\\\\")
