"""Counts by group and method how many collectives were matched on all ranks."""

from __future__ import annotations

import polars as pl

from distprof.merge.run.group_ranks import with_lists

BY = ("group", "group_description", "group_ranks", "matched_by")


def group_coverage(rows: pl.DataFrame) -> pl.DataFrame:
    """Counts collectives by how far they were found on all ranks.

    Args:
        rows: As `match` gives them, or `MERGED_COLLECTIVES`.

    Returns:
        A row per `BY` (members sorted first by their number, most first): `num_collectives`; of these `matched` are
        whole and agree, `partial` were found on some ranks or do not agree, `unmatched` on one rank only; and how many
        have a `mismatch`.
    """
    each = rows.group_by("collective").agg(pl.col(*BY, "complete", "num_ranks", "mismatch").first())
    is_whole, is_lonely = pl.col("complete"), pl.col("num_ranks") == 1
    found = each.group_by(BY).agg(
        pl.len().cast(pl.Int64).alias("num_collectives"),
        *(flag.sum().cast(pl.Int64).alias(name) for name, flag in (
            ("matched", is_whole), ("partial", ~is_whole & ~is_lonely), ("unmatched", ~is_whole & is_lonely),
            ("mismatched", pl.col("mismatch").is_not_null()))))
    return with_lists(found).sort(
        pl.col("group_ranks").list.len(), "group", "matched_by", descending=[True, False, False],
        nulls_last=True).select(*BY, pl.exclude(BY))
