"""Selects the collectives that bound the clocks of their ranks: nobody leaves one before the last rank has entered."""

from __future__ import annotations

import polars as pl

from distprof.contract.ops import BOUNDING_CLOCKS, WITHOUT_DATA
from distprof.merge.clock.by_collectives import COLUMNS


def synchronising(rows: pl.DataFrame) -> pl.DataFrame:
    """The columns `COLUMNS` of those collectives, times as the ranks have them.

    Args:
        rows: As `match` gives them.
    """
    rows = rows.select("collective", "rank", "matched_by", "complete", "mismatch", "op", "size_bytes", "start_ns",
                       "enqueue_ns", "end_ns", "num_ranks")  # lists and texts of a million rows are large
    certain = pl.col("matched_by").is_in(("id", "sequence"))
    # which of alike ones a rank lacks, their order does not tell: then nothing that rests on it counts
    certain |= pl.lit(bool(rows.filter(~certain)["complete"].all()))
    return rows.filter(
        certain, pl.col("complete") | pl.col("mismatch").is_null(), pl.col("op").is_in(BOUNDING_CLOCKS),
        (pl.col("size_bytes").is_null() | (pl.col("size_bytes") > 0)) | pl.col("op").is_in(WITHOUT_DATA),
        pl.col("end_ns").is_not_null().all().over("collective"), pl.col("num_ranks") > 1,
    ).select("collective", "rank", pl.coalesce("start_ns", "enqueue_ns").alias("start_ns"), "end_ns").select(COLUMNS)
