"""Stores the ranks of process groups as texts, each group once: lists of a thousand ranks would take most of the
memory.

While collectives are matched and measured, `group_ranks` and all texts are categories, which take 4 bytes per row.
Lists are made only where rows are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import polars as pl

from distprof.contract.collective_ops import ranks_of, text_of

COLUMN, SIZE = "group_ranks", "group_size"


def as_written_now(rows: pl.DataFrame) -> pl.DataFrame:
    """Returns the rows with `COLUMN` and `SIZE` as in the contract; format 1 stored a list of ranks instead."""
    if rows.schema.get(COLUMN) != pl.List:
        return rows
    lists = rows.select(COLUMN, pl.struct(COLUMN).hash().alias("hash"))  # hashing the list itself takes longer
    groups = lists.unique("hash", keep="first")
    texts = pl.Series(COLUMN, [None if ranks is None else text_of(ranks) for ranks in groups[COLUMN].to_list()],
                      dtype=pl.String)
    found = lists.select("hash").join(groups.select("hash").with_columns(texts), on="hash", how="left",
                                      maintain_order="left")
    return rows.with_columns(found[COLUMN], rows[COLUMN].list.len().cast(pl.Int64).alias(SIZE))


def coded(rows: pl.DataFrame) -> pl.DataFrame:
    """Returns the rows with all texts, including ranks of groups, as categories."""
    return as_written_now(rows).with_columns(pl.col(pl.String).cast(pl.Categorical))


def with_lists(rows: pl.DataFrame, *columns: str) -> pl.DataFrame:
    """Returns the rows with lists of ranks in place of the texts in these columns, by default in `COLUMN`."""
    texts = [name for name in columns or (COLUMN,) if rows.schema.get(name) != pl.List]
    return rows.with_columns(told_of(rows[name], list, pl.List(pl.Int64)) for name in texts)


def told_of(texts: pl.Series, what: Callable[[Sequence[int]], Any], kind: Any) -> pl.Series:
    """Maps texts that stand for ranks to `what(ranks)`, called once per distinct text; null if the text is empty."""
    rows = texts.to_frame()
    groups = rows.select(pl.col(texts.name).unique())
    told = pl.Series("told", [what(ranks_of(text)) if text else None for text in groups[texts.name].cast(
        pl.String).to_list()], dtype=kind)
    found = rows.join(groups.with_columns(told), on=texts.name, how="left", nulls_equal=True, maintain_order="left")
    return found["told"].alias(texts.name)
