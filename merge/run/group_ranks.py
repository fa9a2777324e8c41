"""Keeps the ranks of process groups once a group: in tables of a million rows lists of ranks are most of the memory.

While collectives are matched and measured, `group_ranks` and all texts are categories, 4 bytes a row; the ranks 0, 1
and 2 are the category `0,1,2`. Lists are made where rows are written or shown.
"""

from __future__ import annotations

import polars as pl

COLUMN = "group_ranks"


def coded(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows with texts and lists of ranks as categories."""
    texts = pl.col(pl.String).cast(pl.Categorical)
    return rows.with_columns(texts, *([_categories(rows[COLUMN])] if rows.schema[COLUMN] == pl.List else []))


def _categories(lists: pl.Series) -> pl.Series:
    hashes = lists.to_frame().select(pl.struct(pl.all()).hash().alias("hash"))  # of the list itself it takes longer
    groups = hashes.with_row_index("row").unique("hash", keep="first")
    texts = lists.gather(groups["row"]).cast(pl.List(pl.String)).list.join(",").cast(pl.Categorical)
    return hashes.join(groups.select("hash", texts.alias(COLUMN)), on="hash", how="left",
                       maintain_order="left")[COLUMN]


def with_lists(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows with `group_ranks` as the table has it."""
    groups = rows.select(pl.col(COLUMN).unique())
    lists = groups.with_columns(pl.col(COLUMN).cast(pl.String).str.split(",").cast(pl.List(pl.Int64)).alias("ranks"))
    found = rows.select(COLUMN).join(lists, on=COLUMN, how="left", nulls_equal=True, maintain_order="left")
    return rows.with_columns(found["ranks"].alias(COLUMN))


def num_members(ranks: pl.Expr) -> pl.Expr:
    """How many ranks a group has, by its category; null where they are not known."""
    return ranks.cast(pl.String).str.count_matches(",", literal=True).cast(pl.Int64) + 1
