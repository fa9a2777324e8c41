"""Whether the rows of tables are what ranks write: of the rank itself, without nulls, numbers and texts that cannot be.

Tables are checked once, where they are opened. What is not as it must be costs the table, which is named; all that
reads rows behind it may rely on them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import polars as pl

from distprof.contract.group_ranks import ranks_of
from distprof.contract.parquet_footer import read_footer
from distprof.contract.paths import RANK_JSON
from distprof.contract.rank_json import MOST_RANKS, RankJson
from distprof.contract.table_checksum import DamagedTableError
from distprof.contract.tables import Column, Table
from distprof.merge.run.group_ranks import COLUMN, SIZE
from distprof.units import counted
from distprof.units import size as size_text

FEW_ROWS, FEW_BYTES = 1 << 16, 64 << 20
"""That a table may have however small its file is."""
ROWS_OF_BYTE, BYTES_OF_BYTE = 1, 100
"""More than a byte of a file holds: a row takes 10 bytes or more in tables of real jobs, which become 3 times as large
when they are unpacked."""
LONGEST_NS = 400 * 86_400 * 10**9
"""Times of a rank are not further apart, nor from those in its rank.json."""
SIZES = ("mp_size", "dp_size")
SHOWN = 40
"""Characters of a text that is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Rows of one rank."""

    rank: int
    recorded: RankJson | None
    num_rows: int


def check_size(file: BinaryIO) -> int:
    """The rows of a table, by its footer.

    Args:
        file: Open for reading; is at its begin afterwards.

    Raises:
        DamagedTableError: It has more rows or bytes than its size allows: reading it would take all memory.
    """
    footer, size = read_footer(file), file.seek(0, 2)
    file.seek(0)
    if footer.num_rows > FEW_ROWS + ROWS_OF_BYTE * size or footer.num_rows < 0:
        raise DamagedTableError(f"it says that its {size_text(size)} are {footer.num_rows} rows")
    if footer.page_bytes > FEW_BYTES + BYTES_OF_BYTE * size:
        raise DamagedTableError(f"it says that its {size_text(size)} become {size_text(footer.page_bytes)}")
    return footer.num_rows


def check_rows(rows: pl.DataFrame, table: Table, parts: Sequence[Part]) -> None:
    """Compares rows with what ranks write.

    Args:
        rows: Columns of the table, or some of them.
        table: What each may be.
        parts: Whose they are, in their order.

    Raises:
        DamagedTableError: What is not as it must be, of the first column that has such.
    """
    for column in table.columns:
        if column.name in rows.columns:
            _check_column(rows[column.name], column)
    _check_owner(rows, parts)
    _check_times(rows, table, parts)
    _check_groups(rows, parts)


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
    if column.type == "float64" and (nans := values.is_nan().sum()):
        raise DamagedTableError(f"{column.name} is no number in {nans} of {counted(len(values), 'row')}")
    for found in _edges(values):
        if not column.least <= found <= column.most:
            raise DamagedTableError(f"{column.name} is {found}, which cannot be")


def _edges(values: pl.Series) -> tuple[int, ...]:
    """The least and the most of numbers; none where all are null."""
    least: Any = values.min()
    most: Any = values.max()
    return () if least is None else (least, most)


def _check_texts(values: pl.Series, column: Column) -> None:
    other = [text for text in values.unique().drop_nulls().to_list() if text not in column.among]
    if other:
        raise DamagedTableError(f"{column.name} is {_shown(other[0])}, not one of {', '.join(column.among)}")


def _check_owner(rows: pl.DataFrame, parts: Sequence[Part]) -> None:
    """A table of another rank has its number in each row."""
    if "rank" in rows.columns:
        wanted = np.repeat([part.rank for part in parts], [part.num_rows for part in parts])
        other = np.flatnonzero(rows["rank"].to_numpy() != wanted)
        if len(other):
            at = int(other[0])
            raise DamagedTableError(f"its rows are of rank {rows['rank'][at]}, and its folder is of rank {wanted[at]}")
    for part, some in _by_part(rows, parts):
        for name in SIZES:
            known = getattr(part.recorded, name, None)
            if known is not None and name in some.columns and not (some[name] == known).all():
                raise DamagedTableError(f"{name} is not {known} in all rows, which {RANK_JSON} says")


def _by_part(rows: pl.DataFrame, parts: Sequence[Part]) -> Iterator[tuple[Part, pl.DataFrame]]:
    at = 0
    for part in parts:
        if part.num_rows:
            yield part, rows.slice(at, part.num_rows)
        at += part.num_rows


def _check_times(rows: pl.DataFrame, table: Table, parts: Sequence[Part]) -> None:
    names = [column.name for column in table.columns if column.is_time and column.name in rows.columns]
    for part, some in _by_part(rows, parts) if names else ():
        clock = [pair.realtime_ns for pair in part.recorded.clock] if part.recorded is not None else []
        edges = [(edge, name) for name in names for edge in _edges(some[name])]
        first, last = min(edges, default=(0, "")), max(edges, default=(0, ""))
        if last[0] - first[0] > LONGEST_NS:
            raise DamagedTableError(f"{first[1]} {first[0]} and {last[1]} {last[0]} are more than a year apart")
        for time, name in (first, last) if clock and edges else ():
            if not min(clock) - LONGEST_NS <= time <= max(clock) + LONGEST_NS:
                raise DamagedTableError(f"{name} is {time}, more than a year from the times in {RANK_JSON}")


def _check_groups(rows: pl.DataFrame, parts: Sequence[Part]) -> None:
    if COLUMN not in rows.columns or SIZE not in rows.columns:
        return
    world_size = max((part.recorded.world_size for part in parts if part.recorded is not None), default=MOST_RANKS)
    for text, number in rows.select(pl.col(COLUMN).cast(pl.String), SIZE).unique().iter_rows():
        ranks = ranks_of(text)
        if text and (len(ranks) != number or max(ranks, default=0) >= world_size):
            raise DamagedTableError(f"{COLUMN} is {_shown(text)}, which are no {number} ranks of {world_size}")


def _shown(text: str) -> str:
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}...")
