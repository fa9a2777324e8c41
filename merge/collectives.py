"""The same collective on all ranks: rows of single ranks come in, rows that know their collective go out."""

from __future__ import annotations

import polars as pl

from distprof.contract import COLLECTIVES
from distprof.merge.run import Run
from distprof.merge.tables import load, on_common_clock

POINT_TO_POINT = ("send", "recv")


def match_collectives(run: Run) -> pl.DataFrame:
    """Joins ranks by (group, members, sequence).

    The sequence is counted per group from the start of the trace pass, which is the same step on all ranks. A send and
    its receive stay apart: their numbers are each rank's own.
    """
    frame = load(run, COLLECTIVES).with_columns(
        pl.col("group_ranks").list.eval(pl.element().cast(pl.String)).list.join(",").alias("members"),
        pl.col("op").is_in(POINT_TO_POINT).alias("alone"),
        pl.col("enqueue_ns").alias("start_ns"),
        pl.col("end_ns").alias("finish_ns"),
    )
    frame = on_common_clock(run, frame, ("start_ns", "finish_ns")).with_columns(
        pl.when("alone").then("rank").alias("only_rank"), pl.when("alone").then("op").alias("only_op"))
    key = ["group", "members", "sequence", "alone", "only_rank", "only_op"]
    matched = frame.with_columns(
        pl.len().over(key).cast(pl.Int64).alias("num_ranks"),
        (pl.col("start_ns").max() - pl.col("start_ns").min()).over(key).alias("arrival_spread_ns"),
        pl.col("start_ns").min().over(key).alias("first_ns"),
        (pl.col("op").n_unique() == 1).over(key).alias("one_op"),
    ).with_columns(
        (pl.col("one_op") & (pl.col("alone") | (pl.col("num_ranks") == pl.col("group_ranks").list.len())))
        .alias("complete"),
    ).with_columns(
        # known only where all ranks of a group are there to be compared
        pl.when(pl.col("complete") & ~pl.col("alone") & (pl.col("num_ranks") > 1)).then("arrival_spread_ns")
    )
    order = pl.struct("first_ns", *key)
    return matched.with_columns((order.rank("dense") - 1).cast(pl.Int64).alias("collective")).sort("collective", "rank")


def most_often_late(run: Run) -> int | None:
    """The rank that came last into most collectives; None where none is known."""
    known = match_collectives(run).filter(pl.col("arrival_spread_ns").is_not_null())
    last = known.sort("start_ns", "rank").group_by("collective").agg(pl.col("rank").last())
    counts = last.group_by("rank").len().sort("len", "rank", descending=[True, False])
    return None if counts.is_empty() else int(counts["rank"][0])
