"""Packs columns of tables into bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from distprof.arrays import Array, Flags, Floats, Integers
from distprof.contract.rank_summary import DTYPES, NO_INTEGER, NO_TEXT, PackedTable
from distprof.contract.tables import Column


def packed(table: pa.Table, columns: Iterable[Column]) -> PackedTable:
    """Packs columns of a pyarrow table; columns that an older version did not write become null."""
    found: Array
    values, texts, number = dict[str, bytes](), dict[str, list[str]](), 0
    for column in columns:
        if column.type in ("string", "category"):
            found, texts[column.name] = text_numbers(table, column.name)
        else:
            found = {"int64": integers, "float64": reals, "bool": flags}[column.type](table, column.name)
        values[column.name], number = found.astype(DTYPES[column.type]).tobytes(), len(found)
    return PackedTable(rows=number, columns=values, texts=texts)


def packed_arrays(types: Mapping[str, str], arrays: Mapping[str, Array],
                  texts: Mapping[str, Sequence[str]] | None = None) -> PackedTable:
    """Packs arrays of equal length, each with the type of its column."""
    columns = {name: np.asarray(arrays[name]).astype(kind).tobytes() for name, kind in types.items()}
    return PackedTable(rows=len(arrays[next(iter(types))]), columns=columns,
                       texts={name: list(of) for name, of in (texts or {}).items()})


def integers(table: pa.Table, name: str) -> Integers:
    """Returns a column of whole numbers; `NO_INTEGER` for null."""
    values, known = _numbers(of_column(table, name))
    found: Integers = np.where(known, values, NO_INTEGER).astype(np.int64)
    return found


def reals(table: pa.Table, name: str) -> Floats:
    """Returns a column of numbers; NaN for null."""
    values, known = _numbers(of_column(table, name))
    return np.where(known, values, np.nan)


def flags(table: pa.Table, name: str) -> Any:
    """Returns a column of truth values; False for null."""
    values, known = _numbers(of_column(table, name))
    return (values != 0) & known


def denials(table: pa.Table, name: str) -> Any:
    """Returns where a column of truth values is false and not null; nowhere if an older version did not write it."""
    if name not in table.column_names:
        return np.zeros(len(table), bool)
    values, known = _numbers(of_column(table, name))
    return (values == 0) & known


def text_numbers(table: pa.Table, name: str) -> tuple[Integers, list[str]]:
    """Returns a column of texts as numbers (-1 for null), and the texts that they stand for."""
    column = of_column(table, name)
    if pa.types.is_dictionary(column.type):
        numbers, known = _numbers(column.indices)
        names = column.dictionary.to_pylist()
    else:
        texts = column.to_pylist()
        numbering = {text: number for number, text in enumerate(dict.fromkeys(
            text for text in texts if text is not None))}
        names, numbers = list(numbering), np.array([numbering.get(text, NO_TEXT) for text in texts], np.int64)
        known = numbers >= 0
    numbers = np.where(known, numbers, NO_TEXT).astype(np.int64)
    used = np.unique(numbers[numbers >= 0])
    place = np.full(len(names) + 1, NO_TEXT)
    place[used] = np.arange(len(used))
    return place[numbers], [names[number] for number in used.tolist()]


def is_known(table: pa.Table, name: str) -> Flags:
    """Returns where a column is not null."""
    return _numbers(of_column(table, name))[1]


WIDTHS = {"int64": "<i8", "int32": "<i4", "int16": "<i2", "int8": "i1", "double": "<f8", "float": "<f4"}
UNSIGNED = {"uint32": "<u4", "uint16": "<u2", "uint8": "u1"}
"""Index types that other writers use for texts: they are converted to integers that can hold -1."""


def _numbers(column: pa.Array) -> tuple[Array, Flags]:
    """Returns values and where they are not null, from an array's memory: pyarrow.compute takes long to import.

    Raises:
        TypeError: The values are not numbers.
    """
    length, first = len(column), column.offset
    if pa.types.is_null(column.type):
        return np.zeros(length, np.int64), np.zeros(length, bool)
    valid, content = column.buffers()
    known = np.ones(length, bool) if valid is None else _bits(valid)[first:first + length]
    if pa.types.is_boolean(column.type):
        return _bits(content)[first:first + length], known
    name = str(column.type)
    kind = WIDTHS.get(name) or UNSIGNED.get(name)
    if kind is None:
        raise TypeError(f"expected numbers, found {column.type}")
    values = np.frombuffer(content, kind, length, first * np.dtype(kind).itemsize)
    return values.astype(np.int64) if name in UNSIGNED else values, known


def _bits(buffer: pa.Buffer) -> Flags:
    return np.unpackbits(np.frombuffer(buffer, np.uint8), bitorder="little").astype(bool)


def of_column(table: pa.Table, name: str) -> pa.Array:
    """Returns a column as one array; nulls if the table has no such column."""
    if name not in table.column_names:
        return pa.nulls(table.num_rows)
    column = table[name].combine_chunks()
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def hash_of(content: bytes) -> int:
    """Returns a 64-bit hash that is equal in all processes."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little", signed=True)
