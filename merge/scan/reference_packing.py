"""Columns packed for Parquet in Python: numbers of words or integers come in, the content of a page goes out.

https://parquet.apache.org/docs/file-format/data-pages/encodings
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from distprof.merge.scan.rows import NONE, integers_of, numbers_of

MOST_GROUPS = 63
"""Groups of eight values in a literal run, so that its header is one byte."""
BLOCK, MINIBLOCK = 128, 32
"""Differences that have their least in common, and those that have their width in common."""


def pack_words(numbers: Any, num_words: int, *, optional: bool) -> tuple[bytes, Any]:
    """See `compiled_engine.pack_words`."""
    column = numbers_of(numbers, num_words)
    there = column >= 0
    levels = _levels(there.tolist()) if optional else b""
    codes: dict[int, int] = {}
    values = [codes.setdefault(number, len(codes)) for number in column[there].tolist()]
    used = np.array(list(codes), np.int32)
    if not codes:
        return levels, used
    width = max((len(codes) - 1).bit_length(), 1)
    return levels + bytes([width]) + b"".join(_runs(values, width)), used


def pack_integers(values: Any, *, optional: bool) -> tuple[bytes, int]:
    """See `compiled_engine.pack_integers`."""
    column = integers_of(values)
    levels = b""
    if optional:
        there = column != NONE
        levels, column = _levels(there.tolist()), column[there]
    return levels + (b"".join(_differences(column.tolist())) if len(column) else b""), len(column)


def _levels(there: list[bool]) -> bytes:
    runs = b"".join(_runs([int(value) for value in there], 1))
    return len(runs).to_bytes(4, "little") + runs


def _runs(values: list[int], width: int) -> Iterator[bytes]:
    """Runs of eight and more equal values, and what is between them in groups of eight."""
    at, groups = 0, list[bytes]()
    while at < len(values):
        run = _run(values, at)
        if run >= 8 or len(groups) == MOST_GROUPS:
            yield from _literal(groups)
            groups.clear()
        if run >= 8:
            yield varint(run << 1) + values[at].to_bytes((width + 7) // 8, "little")
            at += run
        else:
            groups.append(_bits(values[at:at + 8], width, 8))
            at += 8
    yield from _literal(groups)


def _run(values: list[int], at: int) -> int:
    end = at + 1
    while end < len(values) and values[end] == values[at]:
        end += 1
    return end - at


def _literal(groups: list[bytes]) -> Iterator[bytes]:
    if groups:
        yield bytes([len(groups) << 1 | 1])
        yield from groups


def _bits(values: Sequence[int], width: int, room: int) -> bytes:
    """So many bits of each, the first ones lowest; zeros up to `room` values."""
    return sum(value << width * place for place, value in enumerate(values)).to_bytes(width * room // 8, "little")


def _differences(values: list[int]) -> Iterator[bytes]:
    yield varint(BLOCK) + varint(BLOCK // MINIBLOCK) + varint(len(values)) + varint(_zigzag(values[0]))
    differences = [_signed(value - before) for before, value in pairwise(values)]
    for begin in range(0, len(differences), BLOCK):
        block = differences[begin:begin + BLOCK]
        least = min(block)
        above = [difference - least for difference in block]
        parts = [above[at:at + MINIBLOCK] for at in range(0, BLOCK, MINIBLOCK)]
        widths = [max(part, default=0).bit_length() for part in parts]
        yield varint(_zigzag(least)) + bytes(widths)
        yield from (_bits(part, width, MINIBLOCK) for part, width in zip(parts, widths, strict=True))


def _signed(value: int) -> int:
    """In 64 bits, around the end."""
    return (value + 2**63) % 2**64 - 2**63


def _zigzag(value: int) -> int:
    return (value << 1 ^ value >> 63) % 2**64


def varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; the high bit says that more follow."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])
