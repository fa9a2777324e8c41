"""Counts how many collectives were matched on all ranks, and what is not known of the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from distprof.merge.run.group_ranks import with_lists


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How many collectives were found on how many of their ranks, and what is not known of them."""

    num_collectives: int
    num_complete: int
    """Found on all ranks of their group, which agree."""
    num_partial: int
    """Found on several, or on all but these do not agree."""
    num_alone: int
    """Found on one rank of several."""
    num_unmatched: int
    """Calls that were not looked for on other ranks: their group is unknown."""
    matched_by: Mapping[str, int]
    """Collectives by how their rows were found."""
    num_mismatches: int
    num_without_end: int
    """Collectives whose end is not known on some rank."""
    num_unsure: int
    """Collectives whose clocks are not sure enough to show who came last."""
    num_spreads: int
    """Collectives whose arrival spread is known."""
    num_disagreeing: int
    """Collectives whose waits by clocks and by durations contradict each other."""

    @property
    def matched_ratio(self) -> float | None:
        """Share of collectives that are complete; None without any."""
        return self.num_complete / self.num_collectives if self.num_collectives else None


def coverage(collectives: pl.DataFrame) -> Coverage:
    """Counts.

    Args:
        collectives: As `per_collective` gives them.
    """
    def count(condition: pl.Expr) -> int:
        return int(collectives.select(condition.fill_null(value=False).sum()).item())

    unmatched = pl.col("matched_by").is_null()
    alone = ~pl.col("complete") & (pl.col("num_ranks") < 2) & ~unmatched
    methods = collectives["matched_by"].drop_nulls().value_counts(sort=True)
    return Coverage(
        num_collectives=len(collectives), num_complete=count(pl.col("complete")), num_alone=count(alone),
        num_partial=count(~pl.col("complete") & ~alone & ~unmatched), num_unmatched=count(unmatched),
        matched_by=dict(methods.iter_rows()), num_mismatches=count(pl.col("mismatch").is_not_null() & ~unmatched),
        num_without_end=count(pl.col("num_without_end") > 0),
        num_unsure=count(pl.col("unsure")), num_spreads=count(pl.col("arrival_spread_ns").is_not_null()),
        num_disagreeing=count(pl.col("disagrees")))


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
