"""Checks that the rows of tables are what ranks write: of the rank itself, without forbidden nulls or impossible
values.

Tables are checked once, where they are opened. A table that fails is dropped and named; code that reads rows after that
may rely on them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any, BinaryIO

import polars as pl

from distprof.contract.collective_ops import ranks_of
from distprof.contract.parquet_footer import LARGE, DamagedTableError, read_footer
from distprof.contract.paths import RANK_JSON
from distprof.contract.rank_json import RankJson
from distprof.contract.run_json import MOST_RANKS
from distprof.contract.tables import Column, Table
from distprof.merge.run.group_ranks import COLUMN, SIZE
from distprof.merge.run.run_model import Rank
from distprof.units import counted
from distprof.units import size as size_text

FEW_BYTES = 64 << 20
"""Bytes that a table may expand to however small its file is; the corresponding number of rows is `LARGE`."""
ROWS_OF_BYTE, BYTES_OF_BYTE = 1, 100
"""Rows and unpacked bytes allowed per byte of a file, more than any real table has: there, a row takes 10 bytes or
more, and unpacking makes tables 3 times as large."""
LONGEST_NS = 400 * 86_400 * 10**9
"""No two times of a rank, nor a time and those in its rank.json, are further apart than this."""
SIZES = ("mp_size", "dp_size")
SHOWN = 40
"""Longest text, in characters, that a message quotes in full."""


def check_size(file: BinaryIO) -> None:
    """Checks the footer of a table.

    Args:
        file: A file opened for reading; it is at its start afterwards.

    Raises:
        DamagedTableError: It claims more rows or bytes than its size allows: reading it would exhaust memory.
    """
    footer = read_footer(file, if_large=True)
    if footer is None:
        return
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if footer.num_rows > LARGE + ROWS_OF_BYTE * size or footer.num_rows < 0:
        raise DamagedTableError(f"it claims {footer.num_rows} rows in {size_text(size)}")
    if footer.page_bytes > FEW_BYTES + BYTES_OF_BYTE * size:
        raise DamagedTableError(f"it claims that {size_text(size)} expand to {size_text(footer.page_bytes)}")


def check_rows(rows: pl.DataFrame, table: Table, owners: Sequence[Rank]) -> None:
    """Compares rows with what ranks write.

    Args:
        rows: All or some columns of the table.
        table: What each column may contain.
        owners: The ranks whose rows these are, in this order. If there are several, merely unusual rows are refused as
            well, such as a rank without rows; the caller then reads the ranks one by one.

    Raises:
        DamagedTableError: A value is not as it must be; names the first such column.
    """
    for column in table.columns:
        if column.name in rows.columns:
            _check_column(rows[column.name], column)
    known = [owner.recorded for owner in owners if owner.recorded is not None]
    _check_owners(rows, [owner.number for owner in owners], known)
    _check_times(rows, table, known)
    _check_groups(rows, known)


def _check_column(values: pl.Series, column: Column) -> None:
    nulls = values.null_count()
    if nulls and not column.nullable:
        raise DamagedTableError(f"{column.name} is null in {nulls} of {counted(len(values), 'row')}")
    if nulls == len(values):
        return
    if column.type == "list<int64>":
        values = values.filter(values.list.len() > 0).explode()
        if values.null_count():
            raise DamagedTableError(f"{column.name} has nulls in its lists")
    if column.type in ("int64", "float64", "list<int64>"):
        _check_numbers(values, column)
    elif column.among:
        _check_texts(values, column)


def _check_numbers(values: pl.Series, column: Column) -> None:
    # a sum is fast, and it is NaN if a value is NaN or infinities of both signs occur
    if column.type == "float64" and math.isnan(values.sum()) and (nans := values.is_nan().sum()):
        raise DamagedTableError(f"{column.name} is not a number in {nans} of {counted(len(values), 'row')}")
    for found in _edges(values):
        if not column.least <= found <= column.most:
            raise DamagedTableError(f"{column.name} is {found}, which is impossible")


def _edges(values: pl.Series) -> tuple[int, ...]:
    """Returns the least and the greatest number; an empty tuple if all are null."""
    least: Any = values.min()
    most: Any = values.max()
    return () if least is None else (least, most)


def _check_texts(values: pl.Series, column: Column) -> None:
    other = [text for text in values.unique().drop_nulls().to_list() if text not in column.among]
    if other:
        raise DamagedTableError(f"{column.name} is {_shown(other[0])}, not one of {', '.join(column.among)}")


def _check_owners(rows: pl.DataFrame, numbers: Sequence[int], known: Sequence[RankJson]) -> None:
    """Checks the columns that are constant in a table: `rank`, which shows the table of another rank, and sizes."""
    if "rank" in rows.columns and len(rows):
        found = rows["rank"].to_numpy()
        in_order = [*found[:-1][found[1:] != found[:-1]].tolist(), int(found[-1])]
        if in_order != numbers:
            other = next((number for number in in_order if number not in numbers), in_order[-1])
            raise DamagedTableError(f"it has rows of rank {other} but is in the folder of rank {numbers[0]}")
    for name in SIZES:
        sizes = {size for one in known if (size := getattr(one, name)) is not None}
        edges = _edges(rows[name]) if sizes and name in rows.columns else ()
        if any({edge} != sizes for edge in edges):
            raise DamagedTableError(f"{name} is {edges[0]} to {edges[-1]}, but {min(sizes)} in {RANK_JSON}")


def _check_times(rows: pl.DataFrame, table: Table, known: Sequence[RankJson]) -> None:
    names = [column.name for column in table.columns if column.is_time and column.name in rows.columns]
    edges = [(edge, name) for name in names for edge in _edges(rows[name])]
    if not edges:
        return
    first, last = min(edges), max(edges)
    if last[0] - first[0] > LONGEST_NS:
        raise DamagedTableError(f"{first[1]} {first[0]} and {last[1]} {last[0]} are more than a year apart")
    clock = [pair.realtime_ns for one in known for pair in one.clock]
    for time, name in (first, last) if clock else ():
        if not max(clock) - LONGEST_NS <= time <= min(clock) + LONGEST_NS:
            raise DamagedTableError(f"{name} is {time}, more than a year from the times in {RANK_JSON}")


def _check_groups(rows: pl.DataFrame, known: Sequence[RankJson]) -> None:
    if COLUMN not in rows.columns or SIZE not in rows.columns:
        return
    world_size = max((one.world_size for one in known), default=MOST_RANKS)
    for text, number in rows.select(pl.col(COLUMN).cast(pl.String), SIZE).unique().iter_rows():
        ranks = ranks_of(text)
        if text and (len(ranks) != number or max(ranks, default=0) >= world_size):
            raise DamagedTableError(f"{COLUMN} is {_shown(text)}, which is not {number} of {world_size} ranks")


def _shown(text: str) -> str:
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}...")
