"""A checksum in each table that distprof writes: CRC-32 of the whole file.

It lies between the data of parquet and its footer, where readers do not look: the file is parquet for all of them.
Parquet's own checksums cover pages, but neither their headers nor the footer, and few readers look at them.
"""

from __future__ import annotations

import os
from typing import BinaryIO

from isal import isal_zlib

MARK = b"distprof-crc32:"
CRC_BYTES, ENDING_BYTES = 4, 8
"""The checksum behind the mark; the length of the footer and `PAR1`, with which a file ends."""
SIZE = len(MARK) + CRC_BYTES
CHUNK_BYTES = 1 << 20
LOOKED_AT = 1 << 20
"""Where the length of the footer is damaged, the mark is looked for in so many bytes before the end."""


class DamagedTableError(OSError):
    """The content of a table is not what was written."""


def add(file: BinaryIO) -> None:
    """Puts the checksum into a table of parquet that has none.

    Args:
        file: Open for reading and writing.
    """
    crc = _crc(file, 0, _size(file))
    at = footer_at(file)
    file.seek(at)
    footer = file.read()
    file.seek(at)
    file.write(MARK + crc.to_bytes(CRC_BYTES, "little") + footer)


def check(file: BinaryIO) -> None:
    """Compares a table with its checksum. One without a checksum passes: an older version or another program wrote it.

    Args:
        file: Open for reading; is at its begin afterwards.

    Raises:
        DamagedTableError: They differ.
    """
    size, at = _size(file), footer_at(file)
    file.seek(max(0, at - SIZE))
    mark = file.read(SIZE)
    if mark.startswith(MARK) and len(mark) == SIZE:
        found = _crc(file, at, size, _crc(file, 0, at - SIZE))
        if found != (written := int.from_bytes(mark[len(MARK):], "little")):
            raise DamagedTableError(f"its checksum should be {written:08x} but is {found:08x}")
    elif _is_anywhere(file, size):
        raise DamagedTableError("its checksum is missing")
    file.seek(0)


def _size(file: BinaryIO) -> int:
    return file.seek(0, os.SEEK_END)


def footer_at(file: BinaryIO) -> int:
    """Where the footer begins, as the end of the file says; 0 for what cannot be."""
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
