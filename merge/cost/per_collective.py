"""Sums up each collective over its ranks: what it was and what it cost."""

from __future__ import annotations

import polars as pl

from distprof.merge.cost.choice import group_key
from distprof.merge.run.group_ranks import with_lists

_OF_ALL = (
    "step", "group", "group_description", "dtype", "complete", "mismatch", "matched_by", "num_ranks",
    "arrival_spread_ns", "late_rank", "end_spread_ns", "unsure", "disagrees", "algbw", "busbw", "between_hosts",
)
"""Columns that are equal in all rows of a collective, or nearly."""


def per_collective(rows: pl.DataFrame) -> pl.DataFrame:
    """A row per collective, in their order.

    `op` is that of most ranks, and `send` for a send and its receive; `size_bytes` the largest input; `number` the
    sequence number; `first_arrival_ns`, `last_arrival_ns`, `last_end_ns` are times; `wait_ns` and `transfer_ns` sums
    over ranks, null where no rank knows it; `longest_ns` the time of the rank that was longest in it.

    Args:
        rows: `MERGED_COLLECTIVES`, sorted by collective and rank.
    """
    held = pl.col("end_ns") - pl.col("arrival_ns")
    is_sent = (pl.col("op") == "send").any()
    known = [pl.when(pl.col(name).is_not_null().any()).then(pl.col(name).sum()).alias(name)
             for name in ("wait_ns", "transfer_ns")]
    each = rows.group_by("collective", maintain_order=True).agg(
        pl.col("op").first(), is_sent.alias("is_sent"), (pl.col("op").min() != pl.col("op").max()).alias("is_mixed"),
        pl.col(_OF_ALL).first(), pl.col("sequence").min().alias("number"),
        pl.col("size_bytes").max(), pl.col("arrival_ns").min().alias("first_arrival_ns"),
        pl.col("arrival_ns").max().alias("last_arrival_ns"), pl.col("end_ns").max().alias("last_end_ns"),
        pl.col("end_ns").is_null().sum().alias("num_without_end"), *known, held.max().alias("longest_ns"),
        held.min().alias("shortest_ns"), pl.col("module_path", "phase", "peer", "asynchronous").first(),
        pl.col("rank").alias("ranks"), pl.col("group_ranks").first(),
    )
    each = each.with_columns(_op(rows, each), group_key().alias("group_key")).drop("is_sent", "is_mixed")
    return with_lists(each)


def _op(rows: pl.DataFrame, each: pl.DataFrame) -> pl.Expr:
    """`send` for a send with its receive; that of most ranks where they differ."""
    mixed = each.filter("is_mixed", ~pl.col("is_sent"))["collective"]
    found = pl.when("is_sent").then(pl.lit("send")).otherwise("op")
    if len(mixed):
        modes = rows.filter(pl.col("collective").is_in(mixed.implode())).group_by(
            "collective", maintain_order=True).agg(pl.col("op").mode(maintain_order=True).first())
        found = pl.col("collective").replace_strict(modes["collective"], modes["op"], default=found)
    return found.alias("op")
