"""Counts as tables: polars frames, and Parquet files with documented columns. Imports polars only for frames."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from distprof.contract.parquet import schema_of, write_table
from distprof.contract.tables import Table
from distprof.errors import OutputError
from distprof.reporters.count_dict import count_dict
from distprof.reporters.count_schema import COUNT_MODULES, COUNT_OPS, JSON_COLUMNS

if TYPE_CHECKING:
    import polars as pl

    from distprof.counting.counted_call import CountedCall


class Frames(NamedTuple):
    """One frame per table of `count_schema`."""

    modules: pl.DataFrame
    ops: pl.DataFrame


def count_frames(counts: CountedCall) -> Frames:
    """One row per module and per operator."""
    import polars as pl
    import pyarrow as pa

    return Frames(*(pl.DataFrame(pa.Table.from_pylist(rows, schema=schema_of(table, {})))
                    for table, rows in _tables(count_dict(counts))))


def write_counts(counts: CountedCall, folder: Path) -> None:
    """Writes both tables, each atomically; `distprof.totals` in their schema holds the totals as JSON."""
    found = count_dict(counts)
    tables = list(_tables(found))
    metadata = {"distprof.totals": json.dumps(found)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for table, rows in tables:
            write_table(folder, table, rows, tags={}, metadata=metadata)
    except OSError as error:
        raise OutputError(f"cannot write {folder}: {error.strerror or error}") from error


def _tables(found: dict[str, Any]) -> Iterator[tuple[Table, list[dict[str, Any]]]]:
    """Takes the rows of both tables out of what `count_dict` returned; lists and mappings become JSON text."""
    for table, key in ((COUNT_MODULES, "modules"), (COUNT_OPS, "ops")):
        yield table, [{name: json.dumps(value) if name in JSON_COLUMNS else value for name, value in row.items()}
                      for row in found.pop(key)]
