"""Writes the parquet files of the run directory with the schemas of the contract."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from distprof.contract.parquet_footer import add_checksum
from distprof.contract.tables import Column, Table
from distprof.files import write_whole

TYPES: dict[str, Any] = {
    "int64": pa.int64(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "category": pa.dictionary(pa.int32(), pa.string()),
    "list<int64>": pa.list_(pa.int64()),
}


def schema_of(table: Table, metadata: Mapping[str, str]) -> Any:
    """Returns the pyarrow schema of a table; the metadata of each field has its documentation."""
    return pa.schema([_field(column) for column in table.columns], metadata=dict(metadata))


def _field(column: Column) -> Any:
    return pa.field(column.name, TYPES[column.type], nullable=column.nullable, metadata={"doc": column.doc})


def write_table(folder: Path, table: Table, rows: Sequence[Mapping[str, Any]], *,
                tags: Mapping[str, int], metadata: Mapping[str, str]) -> int:
    """Writes a table completely or not at all.

    Args:
        folder: Folder of the file.
        table: Its file name and columns.
        rows: One mapping per row; missing columns are null.
        tags: Values of the columns that are the same in all rows.
        metadata: Metadata of the file's schema.

    Returns:
        The number of rows.
    """
    schema = schema_of(table, metadata)
    if not rows:
        _write(folder / table.file, [schema.empty_table()])
        return 0
    columns = {
        column.name: [tags[column.name]] * len(rows) if column.name in tags
        else [row.get(column.name) for row in rows]
        for column in table.columns
    }
    arrays = [pa.array(columns[field.name], type=field.type) for field in schema]
    _write(folder / table.file, [pa.Table.from_arrays(arrays, schema=schema)])
    return len(rows)


def write_pieces(folder: Path, table: Table, pieces: Iterable[pa.Table], metadata: Mapping[str, str]) -> None:
    """Writes a table completely or not at all, from pyarrow tables with its columns; each becomes a row group."""
    schema = schema_of(table, metadata)
    _write(folder / table.file, chain((_fitted(piece, schema) for piece in pieces), [schema.empty_table()]))


def _fitted(piece: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [piece[field.name].combine_chunks() for field in schema]
    arrays = [_category(column) if pa.types.is_dictionary(field.type) else column.cast(field.type)
              for column, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def _category(column: pa.Array) -> pa.DictionaryArray:
    """Encodes texts as a dictionary without repetitions, in order of first appearance: the order of a given dictionary
    may be random."""
    if not pa.types.is_dictionary(column.type):
        return column.cast(pa.string()).dictionary_encode()
    found = column.indices.dictionary_encode()
    return pa.DictionaryArray.from_arrays(found.indices, column.dictionary.take(found.dictionary).cast(pa.string()))


def _write(path: Path, pieces: Iterable[pa.Table]) -> None:
    def write(temporary: Path) -> None:
        with temporary.open("wb") as file, ExitStack() as stack:  # arrow opens no path that is not UTF-8
            writer = None
            for piece in pieces:
                if writer is None:
                    writer = stack.enter_context(pq.ParquetWriter(file, piece.schema, compression="zstd"))
                elif not piece.num_rows:
                    continue
                writer.write_table(piece)
        with temporary.open("r+b") as file:
            add_checksum(file)

    write_whole(path, write)
