"""A Parquet file of words and integers: packed columns come in, row group after row group, the file goes out.

Arrow's own writer looks at every row of a column several times, also where it holds one value or none at all, which for
most columns of a timeline is so. https://parquet.apache.org/docs/file-format has what the numbers here mean.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from distprof.merge.chrome.thrift import Value, binary, i32, i64, sequence, struct
from distprof.merge.scan.engine import pack_integers, pack_words
from distprof.merge.scan.reference_packing import varint

MAGIC = b"PAR1"
INT64, BYTE_ARRAY = 2, 6
"""Physical types."""
PLAIN, RLE, DELTA_BINARY_PACKED, RLE_DICTIONARY = 0, 3, 5, 8
"""Encodings."""
UNCOMPRESSED, LZ4_RAW = 0, 7
"""Codecs."""
DATA_PAGE, DICTIONARY_PAGE = 0, 2
REQUIRED, OPTIONAL = 0, 1
UTF8 = 0
LEAST_COMPRESSED = 256
"""Bytes of a column that are worth it."""
CREATED_BY = b"distprof"
TEXT = struct({1: struct({})})
"""Logical type of strings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A column of a row group, packed."""

    content: bytes
    encoding: int
    dictionary: bytes | None = None
    """Its words or values, one after the other."""
    num_words: int = 0
    bounds: tuple[int, int] | None = None
    """Least and greatest value, where a reader may want to pass over the row group."""


def words_page(numbers: Any, words: Sequence[bytes], *, optional: bool) -> Page:
    """A column of words.

    Args:
        numbers: int32 a row, which word it is; below 0 where there is none.
        words: UTF-8, no two equal.
        optional: There may be rows without a word.
    """
    content, used = pack_words(numbers, len(words), optional=optional)
    if not len(used):
        return Page(content=content, encoding=PLAIN)
    chosen = [words[number] for number in used.tolist()]
    dictionary = b"".join([len(word).to_bytes(4, "little") + word for word in chosen])
    return Page(content=content, encoding=RLE_DICTIONARY, dictionary=dictionary, num_words=len(chosen))


def integers_page(values: Any, *, optional: bool, bounded: bool = False) -> Page:
    """A column of integers, int64 a row, `NONE` where it is optional and there is none.

    Args:
        values: Of the rows.
        optional: There may be rows without a value.
        bounded: Say what the least and the greatest are.
    """
    content, count = pack_integers(values, optional=optional)
    return Page(content=content, encoding=DELTA_BINARY_PACKED if count else PLAIN,
                bounds=(int(values.min()), int(values.max())) if bounded and count else None)


def constant_page(value: int, num_rows: int) -> Page:
    """A column of one integer."""
    return Page(content=b"\1" + _zeros(num_rows), encoding=RLE_DICTIONARY, dictionary=_plain(value), num_words=1)


def empty_page(num_rows: int) -> Page:
    """An optional column, of whatever type, without a value."""
    levels = _zeros(num_rows)
    return Page(content=len(levels).to_bytes(4, "little") + levels, encoding=PLAIN)


def _zeros(num_rows: int) -> bytes:
    """A run of so many zeros of one bit."""
    return varint(num_rows << 1) + b"\0"


def _plain(value: int) -> bytes:
    return value.to_bytes(8, "little", signed=True)


class ParquetFile:
    """Writes row groups to a file of one schema: integers of 64 bits and dictionaries of strings."""

    def __init__(self, path: Path, schema: Any) -> None:
        """Opens the file.

        Args:
            path: Of the file.
            schema: Arrow's; it goes into the file whole.
        """
        self._schema = schema
        self._file = path.open("wb")
        self._file.write(MAGIC)
        self._groups: list[Value] = []
        self._num_rows = 0
        self._codec = pa.Codec("lz4_raw")

    def write(self, pages: Sequence[Page], num_rows: int) -> None:
        """Writes a row group: the columns in the order of the schema."""
        begin, chunks, num_bytes = self._file.tell(), [], 0
        for field, page in zip(self._schema, pages, strict=True):
            chunk, size = self._column(field, page, num_rows)
            chunks.append(chunk)
            num_bytes += size
        self._groups.append(struct({1: sequence(chunks), 2: i64(num_bytes), 3: i64(num_rows), 5: i64(begin),
                                    6: i64(self._file.tell() - begin)}))
        self._num_rows += num_rows

    def close(self) -> None:
        """Writes what a reader begins with."""
        with self._file as file:
            footer = self._footer().content
            file.write(footer + len(footer).to_bytes(4, "little") + MAGIC)

    def _column(self, field: Any, page: Page, num_rows: int) -> tuple[Value, int]:
        """Writes it; gives what a reader needs to find it, and its bytes before they are compressed."""
        begin, size, places = self._file.tell(), 0, []
        pages = [(DATA_PAGE, 5, page.content, struct({
            1: i32(num_rows), 2: i32(page.encoding), 3: i32(RLE), 4: i32(RLE)}))]
        if page.dictionary is not None:
            pages.insert(0, (DICTIONARY_PAGE, 7, page.dictionary, struct({1: i32(page.num_words), 2: i32(PLAIN)})))
        codec = LZ4_RAW if sum(len(content) for _, _, content, _ in pages) > LEAST_COMPRESSED else UNCOMPRESSED
        for kind, number, content, head in pages:
            packed = self._codec.compress(content, asbytes=True) if codec == LZ4_RAW else content
            header = struct({1: i32(kind), 2: i32(len(content)), 3: i32(len(packed)), number: head}).content
            places.append(self._file.tell())
            self._file.write(header + packed)
            size += len(header) + len(content)
        encodings = {PLAIN, RLE, page.encoding} if page.dictionary is not None else {RLE, page.encoding}
        bounds = page.bounds and struct({5: binary(_plain(page.bounds[1])), 6: binary(_plain(page.bounds[0]))})
        found = struct({
            1: i32(_physical(field)), 2: sequence([i32(one) for one in sorted(encodings)], 5),
            3: sequence([binary(field.name.encode())], 8), 4: i32(codec), 5: i64(num_rows), 6: i64(size),
            7: i64(self._file.tell() - begin), 9: i64(places[-1]),
            11: i64(places[0]) if page.dictionary is not None else None, 12: bounds})
        return struct({2: i64(0), 3: found}), size

    def _footer(self) -> Value:
        fields = [struct({4: binary(b"schema"), 5: i32(len(self._schema))})]
        for field in self._schema:
            is_text = _physical(field) == BYTE_ARRAY
            fields.append(struct({
                1: i32(_physical(field)), 3: i32(OPTIONAL if field.nullable else REQUIRED),
                4: binary(field.name.encode()), 6: i32(UTF8) if is_text else None, 10: TEXT if is_text else None}))
        pairs = {**(self._schema.metadata or {}),
                 b"ARROW:schema": base64.b64encode(self._schema.serialize().to_pybytes())}
        return struct({
            1: i32(2), 2: sequence(fields), 3: i64(self._num_rows), 4: sequence(self._groups),
            5: sequence([struct({1: binary(key), 2: binary(value)}) for key, value in pairs.items()]),
            6: binary(CREATED_BY), 7: sequence([struct({1: struct({})})] * len(self._schema))})


def _physical(field: Any) -> int:
    return BYTE_ARRAY if pa.types.is_dictionary(field.type) else INT64
