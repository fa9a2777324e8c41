"""Times of traces in nanoseconds, where the format asks for microseconds."""

from __future__ import annotations

import re
from collections.abc import Iterator

LATEST_US = (1 << 63) // 1000
"""From here on a time in microseconds does not fit into 64 bits of nanoseconds: it would be behind the year 2262."""
_TIME = re.compile(rb'("(?:ts|dur)"\s*:\s*)(\d+)(?=\s*[,}])')
_FIRST = re.compile(rb'"ts"\s*:\s*(\d+)\s*[,}]')
LONGEST = 64
"""Bytes of a key with its time."""


def is_in_ns(text: bytes) -> bool:
    """Whether the first events of a trace have times that can only be nanoseconds."""
    times = [int(match) for match in _FIRST.findall(text) if len(match) < LONGEST]
    return bool(times) and any(times) and all(time >= LATEST_US for time in times if time)


def in_microseconds(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The same text with times a thousandth as large; a key and its time may be in two pieces."""
    held = b""
    for piece in pieces:
        held += piece
        cut = held.rfind(b",", 0, max(len(held) - LONGEST, 0)) + 1
        yield _TIME.sub(_thousandth, held[:cut])
        held = held[cut:]
    yield _TIME.sub(_thousandth, held)


def _thousandth(found: re.Match[bytes]) -> bytes:
    digits = found[2].rjust(4, b"0")
    return found[1] + digits[:-3] + b"." + digits[-3:]
