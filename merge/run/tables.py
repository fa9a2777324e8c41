"""Tables of all ranks as one frame: a run and a table come in, a polars frame with the contract's columns goes out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from distprof.contract.columns import Table
from distprof.contract.parquet import write_arrow
from distprof.contract.paths import STEP_LINES
from distprof.contract.problems import FileUnreadable, Problem
from distprof.contract.tables import STEPS
from distprof.merge.run.run_model import Rank, Run

TYPES: dict[str, pl.DataType] = {
    "int64": pl.Int64(),
    "float64": pl.Float64(),
    "bool": pl.Boolean(),
    "string": pl.String(),
    "category": pl.String(),
    "list<int64>": pl.List(pl.Int64()),
}
UNREADABLE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, UnicodeDecodeError)
"""What reading a damaged table raises; polars panics at some."""


def load(run: Run, table: Table) -> pl.DataFrame:
    """The rows of every rank that has the table; a damaged file goes to `run.problems`, the others are read."""
    return pl.concat(list(load_each(run, table).values()) or [empty(table)])


def load_each(run: Run, table: Table) -> dict[int, pl.DataFrame]:
    """The same by rank, without those that have no table or a damaged one."""
    frames = {rank.number: _load(rank, table, run.problems) for rank in run.ranks}
    return {rank: frame for rank, frame in frames.items() if frame is not None}


def empty(table: Table) -> pl.DataFrame:
    """The table without rows."""
    return pl.DataFrame(schema={column.name: TYPES[column.type] for column in table.columns})


def _load(rank: Rank, table: Table, problems: list[Problem]) -> pl.DataFrame | None:
    file = table.file if rank.has(table) else STEP_LINES if table is STEPS else None
    try:
        if file == STEP_LINES:
            return _steps_of_the_dead(rank)
        return None if file is None else _columns(rank.folder / file, table)
    except UNREADABLE as error:
        problem = FileUnreadable(rank=rank.number, file=str(file), detail=str(error).splitlines()[0])
        if problem not in problems:  # some tables are read more than once
            problems.append(problem)
        return None


def _columns(path: Path, table: Table) -> pl.DataFrame:
    """Columns that an older version did not write yet are null, where they may be."""
    found = pl.read_parquet(path)
    return found.select(
        (pl.lit(None) if column.nullable and column.name not in found.columns else pl.col(column.name))
        .cast(TYPES[column.type]).alias(column.name) for column in table.columns)


def on_common_clock(run: Run, frame: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """The rows with these times, each of its rank's clock, on the clock of the run; null stays null."""
    ranks = frame["rank"].to_numpy()
    return frame.with_columns(
        pl.when(pl.col(name).is_not_null()).then(
            pl.Series(name, run.clock.to_common_ns(ranks, frame[name].fill_null(0).to_numpy()))).alias(name)
        for name in names)


def _steps_of_the_dead(rank: Rank) -> pl.DataFrame | None:
    """Steps that a killed rank had written down line by line."""
    if rank.plain:
        return None
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
