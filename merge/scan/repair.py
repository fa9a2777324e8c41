"""Repairs events: turns invalid JSON into the nearest strict JSON, and nanoseconds into microseconds.

It also finds impossible times of what ran on a device.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import numpy as np

from distprof.arrays import Array, Flags, Integers

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|,(?=[ \t\r\n]*[}\]])|[-+.0-9A-Za-z]+', re.DOTALL)
_NUMBER = re.compile(rb"([-+]?)([0-9]*)((?:\.[0-9]*)?)((?:[eE][-+]?[0-9]+)?)")
_NOT_FINITE = {b"inf": b"Infinity", b"infinity": b"Infinity", b"-inf": b"-Infinity", b"-infinity": b"-Infinity"}
_NAMES = frozenset((b"nan", b"inf", b"infinity"))
_WORDS = frozenset((b"true", b"false", b"null"))
_HEX = rb"[0-9a-fA-F]"
_ODD = re.compile(
    rb"\\u([dD][89abAB]" + _HEX + rb"{2})\\u([dD][c-fC-F]" + _HEX + rb"{2})"  # a pair of surrogates
    rb"|(\\u[dD][89a-fA-F]" + _HEX + rb"{2})"                                 # an unpaired surrogate
    rb'|(\\["\\/bfnrt]|\\u' + _HEX + rb"{4})"                                 # valid escapes
    rb"|[\\\x00-\x1f]")
BACKSLASH_LAST = b'\\\\"'
"""A backslash at the end of a string, or one before an escaped quote."""
LATEST_US = (1 << 63) // 1000
"""A time in microseconds from here on, after the year 2262, does not fit into 64 bits when converted to nanoseconds."""
_TIME = re.compile(rb'("(?:ts|dur)"\s*:\s*)(\d+)(?:\.\d*)?(?=\s*[,}])')
_FIRST = re.compile(rb'"ts"\s*:\s*(\d+)(?:\.\d*)?\s*[,}]')
LONGEST_TIME = 64
"""Maximum bytes of a key with its time."""
_SHORT = {9: b"\\t", 10: b"\\n", 13: b"\\r", ord("\\"): b"\\\\"}
_OF_HIP = re.compile(r"hip[A-Z]")
ON_DEVICE = (b"kernel", b"gpu_memcpy", b"gpu_memset", b"memcpy", b"memset")
"""Categories of what runs on a stream, in lower case."""
DAY_NS = 86_400_000_000_000
"""Slices that begin this much earlier than the median cannot belong to the same recording."""


def repaired(event: bytes) -> bytes:
    """Returns the event itself if it is strict JSON in UTF-8 that every viewer reads, otherwise a repaired copy.

    NaN, infinities and integers beyond 64 bits become strings, which Perfetto reads as numbers where it expects
    numbers. Control characters are escaped, unknown escapes become the characters they are written with, pairs of
    surrogates the character they encode, an unpaired one U+FFFD. Numbers like 01, +1, .5 and 5. get their usual form, a
    superfluous comma is removed, and bytes that are not UTF-8 become U+FFFD. A backslash at the end of a string is
    written by its code: Perfetto takes the usual two, with the quote after them, for an escaped quote, and then refuses
    the whole file.
    """
    fixed = event if valid_utf8(event) else event.decode("utf-8", "replace").encode()
    fixed = _TOKEN.sub(_token, fixed)
    return event if fixed == event else fixed


def valid_utf8(text: bytes) -> bool:
    """Returns whether the text is UTF-8."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _token(match: re.Match[bytes]) -> bytes:
    token = match.group()
    if token.startswith(b'"'):
        text = _ODD.sub(_character, token)
        return text[:-3] + b'\\u005c"' if text.endswith(BACKSLASH_LAST) else text
    if token == b",":
        return b""
    return token if token in _WORDS else _number(token)


def _number(token: bytes) -> bytes:
    match = _NUMBER.fullmatch(token)
    if match is None or not (match[2] or match[3].strip(b".")):
        lower = token.lower().removeprefix(b"+")
        # other words are damage and stay as they are: no reader takes them for values
        return b'"%s"' % _NOT_FINITE.get(lower, b"NaN") if lower.removeprefix(b"-") in _NAMES else token
    sign, whole, fraction, exponent = match.groups()
    whole = whole.lstrip(b"0") or b"0"
    fraction = b"" if fraction == b"." else fraction
    strict = sign.replace(b"+", b"") + whole + fraction + exponent
    if fraction or exponent or len(whole) < 19 or (len(whole) == 19 and -(2**63) <= int(strict) < 2**63):
        return strict
    return b'"%s"' % strict


def _character(match: re.Match[bytes]) -> bytes:
    high, low, half, plain = match.groups()
    if plain:
        return plain
    if half:
        return "\ufffd".encode()
    if high:
        return chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + (int(low, 16) - 0xDC00)).encode()
    code = match.group()[0]
    return _SHORT.get(code) or b"\\u%04x" % code


def is_in_ns(text: bytes) -> bool:
    """Returns whether the first events of a trace have times that can only be nanoseconds."""
    times = [int(match) for match in _FIRST.findall(text) if len(match) < LONGEST_TIME]
    return bool(times) and any(times) and all(time >= LATEST_US for time in times if time)


def in_microseconds(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Divides the times in a text by 1000; a key and its time may be in two pieces."""
    held = b""
    for piece in pieces:
        held += piece
        cut = held.rfind(b",", 0, max(len(held) - LONGEST_TIME, 0)) + 1
        yield _TIME.sub(_thousandth, held[:cut])
        held = held[cut:]
    yield _TIME.sub(_thousandth, held)


def _thousandth(found: re.Match[bytes]) -> bytes:
    digits = found[2].rjust(4, b"0")
    return found[1] + digits[:-3] + b"." + digits[-3:]


def untimed(start: Integers, duration: Integers) -> Flags:
    """Returns which slices of devices have invalid times: they end before they begin, or begin over a day before the
    median.

    CUPTI may record 0 as the start and the end of a kernel (pytorch/kineto issue 109), or an end before the start.

    Args:
        start: When each began, int64 ns.
        duration: How long each took, in ns.
    """
    return (duration < 0) | (start < (np.median(start) if len(start) else 0) - DAY_NS)


def has_overlong(calls: Iterable[str]) -> bool:
    """Returns whether a trace may have overlong kernels, which only HIP's calls mean: CUDA's overlap on purpose."""
    return any(map(_OF_HIP.match, calls))


def cut_overlong(stream: Array, start: Integers, duration: Integers) -> tuple[Integers, Integers]:
    """Cuts a slice at the start of the next one if it is still running when the second next begins, or when the next
    ends and there is no second.

    ROCm records kernels as lasting far into later ones, although a stream runs them one after the other:
    AMD-AGI/TraceLens issue 669 has one of 1.6 s on a stream of 2 ms.

    Args:
        stream: Number of the stream of each slice.
        start: When each began, int64; any order.
        duration: How long each took, in the same unit.

    Returns:
        Durations, of which the cut ones reach to the start of the next slice on the stream; and the indices of these.
    """
    order = np.lexsort((start, stream))
    stream, begin, end = stream[order], start[order], (start + duration)[order]
    follows = stream[1:] == stream[:-1]
    # slices that begin at the same time as another one prove nothing
    limit = np.full(len(order), np.iinfo(np.int64).max)
    limit[:-1][follows] = end[1:][follows]
    limit[:-2][stream[2:] == stream[:-2]] = begin[2:][stream[2:] == stream[:-2]]
    following = np.append(begin[1:], 0)
    is_over = (end > limit) & (following > begin)
    found = duration.copy()
    found[order[is_over]] = (following - begin)[is_over]
    return found, order[is_over]
