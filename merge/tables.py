"""Tables of all ranks as one frame: a run and a table come in, a polars frame with the contract's columns goes out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from distprof.contract import STEP_LINES, STEPS, Table
from distprof.errors import DataError
from distprof.merge.run import Rank, Run
from distprof.tables import write_arrow

TYPES: dict[str, pl.DataType] = {
    "int64": pl.Int64(),
    "float64": pl.Float64(),
    "bool": pl.Boolean(),
    "string": pl.String(),
    "category": pl.String(),
    "list<int64>": pl.List(pl.Int64()),
}


def load(run: Run, table: Table) -> pl.DataFrame:
    """The rows of every rank that has the table.

    Raises:
        DataError: A file is damaged or lacks a column.
    """
    frames = [_load(rank, table) for rank in run.ranks]
    return pl.concat([frame for frame in frames if frame is not None] or [empty(table)])


def empty(table: Table) -> pl.DataFrame:
    """The table without rows."""
    return pl.DataFrame(schema={column.name: TYPES[column.type] for column in table.columns})


def _load(rank: Rank, table: Table) -> pl.DataFrame | None:
    if not rank.has(table):
        return _steps_of_the_dead(rank) if table is STEPS else None
    path = rank.folder / table.file
    try:
        frame = pl.read_parquet(path)
        return frame.select(pl.col(column.name).cast(TYPES[column.type]) for column in table.columns)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"expected the columns of {table.file} in {path}, found: {str(error).splitlines()[0]}",
                        hint="the file was changed or cut") from error


def on_common_clock(run: Run, frame: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """The rows with these times, each of its rank's clock, on the clock of the run; null stays null."""
    ranks = frame["rank"].to_numpy()
    return frame.with_columns(
        pl.when(pl.col(name).is_not_null()).then(
            pl.Series(name, run.clock.to_common_ns(ranks, frame[name].fill_null(0).to_numpy()))).alias(name)
        for name in names)


def _steps_of_the_dead(rank: Rank) -> pl.DataFrame | None:
    """Steps that a killed rank had written down line by line."""
    lines = rank.folder / STEP_LINES
    whole = [line for line in lines.read_text().splitlines() if line.endswith("}")] if lines.exists() else []
    if not whole:
        return None
    tags = {"rank": rank.number, "mp_size": rank.info.mp_size or 1, "dp_size": rank.info.dp_size or 1}
    schema = {column.name: TYPES[column.type] for column in STEPS.columns if column.name not in tags}
    frame = pl.read_ndjson("\n".join(whole).encode(), schema=schema)
    return frame.with_columns(pl.lit(value, pl.Int64).alias(name) for name, value in tags.items()).select(
        column.name for column in STEPS.columns)


def write(folder: Path, table: Table, frame: pl.DataFrame, metadata: dict[str, str]) -> None:
    """Writes a merged table with the columns of the contract, in their order."""
    checked = frame.select(pl.col(column.name).cast(TYPES[column.type]) for column in table.columns)
    write_arrow(folder, table, checked.to_arrow(), metadata)
