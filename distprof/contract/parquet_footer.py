"""The end of a parquet table: its footer, which tells sizes before the table is read, and a checksum in front of it.

A few KB of parquet may hold gigabytes: the footer says how many rows a table has, and how many bytes its pages take.
Polars cannot tell this without reading the pages, and loading arrow takes longer than reading the footers of a run.

The checksum, CRC-32 of the whole file, lies between the data and the footer, where readers do not look: the file is
parquet for all of them. Parquet's own checksums cover pages, but neither their headers nor the footer, and few readers
look at them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from isal import isal_zlib

MOST_BYTES = 4 << 20
"""A longer footer counts as damaged; those of ranks have a few KB."""
NUM_ROWS, ROW_GROUPS, TOTAL_BYTES = 3, 4, 2
"""Field ids in parquet.thrift: of num_rows and row_groups in FileMetaData, and of total_byte_size in RowGroup."""
LARGE = 1 << 20
_LARGE_NUMBERS = (re.compile(rb"\x16[\x80-\xff]{3}"), re.compile(rb"\x06[\x04\x06][\x80-\xff]{3}"))
"""Match a 64-bit number of at least `LARGE` in one of these fields: its field header (with the distance from the
previous field id, or with the id itself) and a long varint. Other bytes may match by chance: then the footer is parsed
needlessly."""
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 11, 12
_INTEGERS = (4, 5, 6)
MARK = b"distprof-crc32:"
CRC_BYTES, ENDING_BYTES = 4, 8
"""Length of the checksum after the mark; length of the end of a file, which is the size of the footer and `PAR1`."""
MARK_BYTES = len(MARK) + CRC_BYTES
CHUNK_BYTES = 1 << 20
LOOKED_AT = 1 << 20
"""If the length of the footer is damaged, the mark is searched in this many bytes before the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footer:
    """Sizes of a table from its footer."""

    num_rows: int
    page_bytes: int
    """Uncompressed size of all its pages."""


def read_footer(file: BinaryIO, *, if_large: bool = False) -> Footer | None:
    """Reads the footer.

    Args:
        file: Open for reading; afterwards positioned at its start.
        if_large: Parse the footer only if the table or one of its row groups may have `LARGE` rows or bytes.

    Returns:
        None if it was not parsed.

    Raises:
        DamagedTableError: It is not a valid footer.
    """
    file.seek(footer_at(file))
    content = file.read(MOST_BYTES)[:-ENDING_BYTES]
    file.seek(0)
    if if_large and not any(pattern.search(content) for pattern in _LARGE_NUMBERS):
        return None
    try:
        return _footer(content)
    except (IndexError, RecursionError):
        raise DamagedTableError("its footer cannot be read") from None


def _footer(data: bytes) -> Footer:
    num_rows = page_bytes = 0
    for field, kind, at in _Fields(data, 0):
        if field == NUM_ROWS:
            num_rows = _integer(data, at)[0]
        elif field == ROW_GROUPS and kind == _LIST:
            page_bytes = _bytes_of_groups(data, at)
    return Footer(num_rows=num_rows, page_bytes=page_bytes)


def _bytes_of_groups(data: bytes, at: int) -> int:
    found, (size, _, at) = 0, _list_begins(data, at)
    for _ in range(size):
        fields = _Fields(data, at)
        found += sum(_integer(data, at)[0] for field, _, at in fields if field == TOTAL_BYTES)
        at = fields.at
    return found


class _Fields:
    """Iterates over the fields of a struct in thrift's compact protocol: id, type, and offset of the value."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self.at = at
        """Offset of what was not read yet; at the end, the offset after the struct."""

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        field = 0
        while head := self._data[self.at]:
            self.at += 1
            if head > 15:
                field += head >> 4
            else:
                field, self.at = _integer(self._data, self.at)
            yield field, head & 15, self.at
            self.at = _behind(self._data, self.at, head & 15)
        self.at += 1


def _behind(data: bytes, at: int, kind: int) -> int:
    """Returns the offset after a value. Most of the time is spent here, so varints are skipped in place."""
    if kind in _INTEGERS:
        while data[at] > 127:
            at += 1
        return at + 1
    if kind == _BINARY:
        size, at = _unsigned(data, at)
        return _within(data, at + size)
    if kind == _STRUCT:
        while head := data[at]:
            at += 1
            if head < 16:
                at = _behind(data, at, _INTEGERS[0])
            at = _behind(data, at, head & 15)
        return at + 1
    if kind in (_LIST, _SET):
        size, kind, at = _list_begins(data, at)
        return _behind_all(data, at, size, (kind,))
    if kind == _MAP:
        size, at = _unsigned(data, at)
        return _behind_all(data, at + 1, size, (data[at] >> 4, data[at] & 15)) if size else at
    return _within(data, at + {_BYTE: 1, _DOUBLE: 8}.get(kind, 0))


def _behind_all(data: bytes, at: int, size: int, kinds: Sequence[int]) -> int:
    """Returns the offset after the elements of a list or map. Booleans take a byte there, so every element takes space,
    and a wrong size runs into the end of the data."""
    for _ in range(size):
        for kind in kinds:
            at = _behind(data, at, _BYTE if kind in (_TRUE, _FALSE) else kind)
            if kind == 0 or kind > _STRUCT:
                raise IndexError
    return at


def _within(data: bytes, at: int) -> int:
    if at > len(data):
        raise IndexError
    return at


def _list_begins(data: bytes, at: int) -> tuple[int, int, int]:
    """Returns the size of a list, the type of its elements, and their offset."""
    head = data[at]
    if head < 0xF0:
        return head >> 4, head & 15, at + 1
    size, at = _unsigned(data, at + 1)
    return size, head & 15, at


def _integer(data: bytes, at: int) -> tuple[int, int]:
    number, at = _unsigned(data, at)
    return number >> 1 ^ -(number & 1), at


def _unsigned(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while (byte := data[at]) > 127:
        number |= (byte & 127) << shift
        shift += 7
        at += 1
    return number | byte << shift, at + 1


class DamagedTableError(OSError):
    """A table does not contain what was written."""


def add_checksum(file: BinaryIO) -> None:
    """Inserts the checksum into a parquet table that has none.

    Args:
        file: Open for reading and writing.
    """
    crc = _crc(file, 0, _size(file))
    at = footer_at(file)
    file.seek(at)
    footer = file.read()
    file.seek(at)
    file.write(MARK + crc.to_bytes(CRC_BYTES, "little") + footer)


def check_checksum(file: BinaryIO) -> None:
    """Compares a table with its checksum. Tables without one pass: an older version or another program wrote them.

    Args:
        file: Open for reading; afterwards positioned at its start.

    Raises:
        DamagedTableError: The table does not match its checksum.
    """
    size, at = _size(file), footer_at(file)
    file.seek(max(0, at - MARK_BYTES))
    mark = file.read(MARK_BYTES)
    if mark.startswith(MARK) and len(mark) == MARK_BYTES:
        found = _crc(file, at, size, _crc(file, 0, at - MARK_BYTES))
        if found != (written := int.from_bytes(mark[len(MARK):], "little")):
            raise DamagedTableError(f"its checksum should be {written:08x} but is {found:08x}")
    elif _is_anywhere(file, size):
        raise DamagedTableError("its checksum is missing")
    file.seek(0)


def _size(file: BinaryIO) -> int:
    return file.seek(0, os.SEEK_END)


def footer_at(file: BinaryIO) -> int:
    """Returns the offset of the footer according to the end of the file; 0 if that is impossible."""
    size = _size(file)
    file.seek(max(0, size - ENDING_BYTES))
    return max(0, size - ENDING_BYTES - int.from_bytes(file.read(4), "little"))


def _crc(file: BinaryIO, begin: int, end: int, before: int = 0) -> int:
    file.seek(begin)
    while begin < end and (chunk := file.read(min(CHUNK_BYTES, end - begin))):
        before = isal_zlib.crc32(chunk, before)
        begin += len(chunk)
    return before


def _is_anywhere(file: BinaryIO, size: int) -> bool:
    file.seek(max(0, size - LOOKED_AT))
    return MARK in file.read()
