"""Thrift's compact protocol, as far as the metadata of a Parquet file needs it: values come in, bytes go out.

https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from distprof.merge.scan.reference_packing import varint


class Value(NamedTuple):
    """A value with the number of its type."""

    type: int
    content: bytes


def i32(number: int) -> Value:
    """A 32-bit integer, 0 or more; enumerations too."""
    return Value(5, varint(number << 1))


def i64(number: int) -> Value:
    """A 64-bit integer, 0 or more."""
    return Value(6, varint(number << 1))


def binary(text: bytes) -> Value:
    """Bytes; strings too."""
    return Value(8, varint(len(text)) + text)


def sequence(values: Sequence[Value], kind: int = 12) -> Value:
    """A list of values of one type, which is that of structures where nothing else is said."""
    count = len(values)
    head = bytes([count << 4 | kind]) if count < 15 else bytes([0xF0 | kind]) + varint(count)
    return Value(9, head + b"".join(value.content for value in values))


def struct(fields: Mapping[int, Value | None]) -> Value:
    """A structure: its fields by number, ascending; None is not there."""
    out, before = [], 0
    for number, value in fields.items():
        if value is not None:
            out += [bytes([number - before << 4 | value.type]), value.content]
            before = number
    return Value(12, b"".join([*out, b"\0"]))
