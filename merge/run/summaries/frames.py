"""Tables of all ranks as frames, made of what summaries joined: no object a row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from distprof.contract.rank_summary import NO_INTEGER
from distprof.contract.tables import Column, Table
from distprof.merge.run.summaries.summaries import Joined

TYPES: dict[str, pl.DataType] = {"int64": pl.Int64(), "float64": pl.Float64(), "bool": pl.Boolean(),
                                 "string": pl.String(), "category": pl.String()}


def frame_of(joined: Joined, table: Table, *, mp_size: int, dp_size: int) -> pl.DataFrame:
    """The columns of a table, rank by rank; those that summaries do not have are null."""
    rows = len(joined.rank)
    known = {"rank": pl.Series("rank", joined.rank, dtype=pl.Int64)}
    known |= {name: pl.repeat(size, rows, dtype=pl.Int64, eager=True) for name, size in (
        ("mp_size", mp_size), ("dp_size", dp_size))}
    return pl.DataFrame([known[column.name].alias(column.name) if column.name in known else _series(joined, column)
                         for column in table.columns])


def _series(joined: Joined, column: Column) -> pl.Series:
    values, kind = joined.columns.get(column.name), TYPES[column.type]
    if values is None:
        return pl.repeat(None, len(joined.rank), dtype=kind, eager=True).alias(column.name)
    if column.name in joined.texts:
        return _texts(column.name, values, joined.texts[column.name])
    found = pl.Series(column.name, values)
    if column.type == "bool":
        return found.cast(pl.Boolean)
    if not column.nullable:
        return found
    known = values != NO_INTEGER if column.type == "int64" else ~np.isnan(values)
    if known.all():
        return found
    return pl.select(pl.when(pl.Series(known)).then(found).alias(column.name)).to_series()


def _texts(name: str, numbers: np.typing.NDArray[np.int32], texts: Sequence[str]) -> pl.Series:
    named = pl.Series(name, texts, dtype=pl.String)
    if not len(named):
        return pl.repeat(None, len(numbers), dtype=pl.String, eager=True).alias(name)
    index = pl.Series(numbers)
    if len(numbers) and int(numbers.min()) < 0:
        index = index.to_frame("at").select(pl.when(pl.col("at") >= 0).then("at")).to_series()
    return named.gather(index)
