"""How many rows a table of parquet has, and how many bytes its pages take: what its footer says, before it is read.

A few KB of parquet may hold gigabytes. Polars does not tell without reading them, and arrow takes longer to load than
the footers of a run take to read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from distprof.contract.table_checksum import ENDING_BYTES, DamagedTableError, footer_at

MOST_BYTES = 4 << 20
"""Of a footer; those of ranks have some KB."""
NUM_ROWS, ROW_GROUPS, TOTAL_BYTES = 3, 4, 2
"""Numbers of fields in FileMetaData, and of one in RowGroup, as parquet.thrift has them."""
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 11, 12
_INTEGERS = (4, 5, 6)
_WIDTHS = {_TRUE: 0, _FALSE: 0, _BYTE: 1, _DOUBLE: 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class Footer:
    """What the footer of a table says."""

    num_rows: int
    page_bytes: int
    """What all its pages take when they are unpacked."""


def read_footer(file: BinaryIO) -> Footer:
    """Reads the footer.

    Args:
        file: Open for reading; is at its begin afterwards.

    Raises:
        DamagedTableError: It is none.
    """
    file.seek(footer_at(file))
    content = file.read(MOST_BYTES)[:-ENDING_BYTES]
    file.seek(0)
    try:
        return _footer(_Compact(content))
    except (IndexError, KeyError, RecursionError):
        raise DamagedTableError("its footer cannot be read") from None


def _footer(content: _Compact) -> Footer:
    num_rows = page_bytes = 0
    for field, kind in content.fields():
        if field == NUM_ROWS:
            num_rows = content.integer()
        elif field == ROW_GROUPS:
            size, _ = content.list_begins()
            page_bytes = sum(_bytes_of_group(content) for _ in range(size))
        else:
            content.skip(kind)
    return Footer(num_rows=num_rows, page_bytes=page_bytes)


def _bytes_of_group(content: _Compact) -> int:
    found = 0
    for field, kind in content.fields():
        if field == TOTAL_BYTES:
            found = content.integer()
        else:
            content.skip(kind)
    return found


class _Compact:
    """Thrift's compact protocol."""

    def __init__(self, content: bytes) -> None:
        self._content, self._at = content, 0

    def fields(self) -> Iterator[tuple[int, int]]:
        """Number and type of each field of a struct; who asks for the next one has read or skipped it."""
        field = 0
        while head := self._byte():
            field = field + (head >> 4) if head >> 4 else self.integer()
            yield field, head & 15

    def list_begins(self) -> tuple[int, int]:
        """Size of a list, and the type of what is in it."""
        head = self._byte()
        return (head >> 4 if head >> 4 < 15 else self._unsigned()), head & 15

    def integer(self) -> int:
        number = self._unsigned()
        return number >> 1 ^ -(number & 1)

    def skip(self, kind: int) -> None:
        if kind in _INTEGERS:
            self._unsigned()
        elif kind == _BINARY:
            self._pass(self._unsigned())
        elif kind == _STRUCT:
            for _, inner in self.fields():
                self.skip(inner)
        elif kind in (_LIST, _SET):
            size, inner = self.list_begins()
            for _ in range(size):
                self._skip_item(inner)
        elif kind == _MAP:
            self._skip_map()
        else:
            self._pass(_WIDTHS[kind])

    def _skip_map(self) -> None:
        if size := self._unsigned():
            kinds = self._byte()
            for _ in range(size):
                self._skip_item(kinds >> 4)
                self._skip_item(kinds & 15)

    def _skip_item(self, kind: int) -> None:
        """In lists and maps a truth value has a byte of its own: so lies about their size end with the content."""
        self.skip(_BYTE if kind in (_TRUE, _FALSE) else kind)

    def _pass(self, size: int) -> None:
        self._at += size
        if self._at > len(self._content):
            raise IndexError

    def _unsigned(self) -> int:
        number = shift = 0
        while (byte := self._byte()) & 128:
            number |= (byte & 127) << shift
            shift += 7
        return number | byte << shift

    def _byte(self) -> int:
        byte = self._content[self._at]
        self._at += 1
        return byte
