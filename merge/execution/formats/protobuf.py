"""The wire format of protocol buffers, as far as execution traces need it.

Of the encoding described at protobuf.dev/programming-guides/encoding: numbers as varints, everything else with its
length before it. The runtime of protobuf is not a dependency: other programs pin its version.
"""

from __future__ import annotations

from collections.abc import Iterable

_VARINT, _LENGTH = 0, 2
_MASK = 2**64 - 1
_OF_A_BYTE = [bytes((number,)) for number in range(128)]


def varint(number: int) -> bytes:
    """A number below 2^64; negative ones as their two's complement of 64 bits."""
    if 0 <= number <= 0x7F:
        return _OF_A_BYTE[number]
    number &= _MASK
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def number_field(field: int, value: int) -> bytes:
    """A field of any type of integer or bool."""
    return varint(field << 3 | _VARINT) + varint(value)


def bytes_field(field: int, value: bytes) -> bytes:
    """A field of a message, bytes or a text in UTF-8."""
    return varint(field << 3 | _LENGTH) + varint(len(value)) + value


def text_field(field: int, value: str) -> bytes:
    """A field of a text; what is no text in UTF-8 is replaced."""
    return bytes_field(field, value.encode("utf-8", "replace"))


def numbers_field(field: int, values: Iterable[int]) -> bytes:
    """A repeated field of integers; nothing for none."""
    packed = b"".join(map(varint, values))
    return bytes_field(field, packed) if packed else b""


def delimited(message: bytes) -> bytes:
    """A message in a stream of several."""
    return varint(len(message)) + message
