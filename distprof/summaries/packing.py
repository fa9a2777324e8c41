"""Packs columns of tables into bytes, and counts what is cut so that a summary stays small."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distprof.contract.parquet import TYPES
from distprof.contract.rank_summary import DTYPES, MOST_CHARACTERS, NO_INTEGER, NO_TEXT, PackedTable
from distprof.contract.tables import Column

Integers = npt.NDArray[np.int64]
Cut = Counter[str]
"""What -> how many of it were left out."""
_HALF = (MOST_CHARACTERS - 3) // 2


def shortened(text: str, cut: Cut) -> str:
    """A name without its middle, where it is too long."""
    if len(text) <= MOST_CHARACTERS:
        return text
    cut["characters of names"] += len(text) - 2 * _HALF - 3
    return f"{text[:_HALF]}...{text[-_HALF:]}"


def packed(table: Any, columns: Iterable[Column], cut: Cut) -> PackedTable:
    """Columns of a pyarrow table; those that an older version did not write are null."""
    values, texts = dict[str, bytes](), dict[str, list[str]]()
    for column in columns:
        if column.type in ("string", "category"):
            numbers, names = text_numbers(table, column.name)
            values[column.name] = numbers.astype(DTYPES[column.type]).tobytes()
            texts[column.name] = [shortened(name, cut) for name in names]
        else:
            values[column.name] = _numbers(table, column).astype(DTYPES[column.type]).tobytes()
    return PackedTable(rows=table.num_rows, columns=values, texts=texts)


def packed_arrays(types: Mapping[str, str], arrays: Mapping[str, Any],
                  texts: Mapping[str, Sequence[str]] | None = None) -> PackedTable:
    """Arrays of equal length, each as the type of its column."""
    columns = {name: np.asarray(arrays[name]).astype(kind).tobytes() for name, kind in types.items()}
    return PackedTable(rows=len(arrays[next(iter(types))]), columns=columns,
                       texts={name: list(of) for name, of in (texts or {}).items()})


def _numbers(table: Any, column: Column) -> Any:
    unknown: Any = {"int64": NO_INTEGER, "float64": np.nan, "bool": False}[column.type]
    return of_column(table, column.name).cast(TYPES[column.type]).fill_null(unknown).to_numpy(zero_copy_only=False)


def integers(table: Any, name: str) -> Integers:
    """A column of whole numbers; `NO_INTEGER` for null."""
    found: Integers = of_column(table, name).cast(pa.int64()).fill_null(NO_INTEGER).to_numpy(zero_copy_only=False)
    return found


def text_numbers(table: Any, name: str) -> tuple[Any, list[str]]:
    """A column of texts as numbers, -1 for null, and the texts that they stand for."""
    column = of_column(table, name)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    coded = column.cast(pa.string()).dictionary_encode()
    return coded.indices.fill_null(NO_TEXT).to_numpy(zero_copy_only=False), coded.dictionary.to_pylist()


def of_column(table: Any, name: str) -> Any:
    """One array; nulls where the table has no such column."""
    if name not in table.column_names:
        return pa.nulls(table.num_rows)
    column = table[name].combine_chunks()
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def hash_of(content: bytes) -> int:
    """A number of 64 bits that is equal in all processes."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little", signed=True)
