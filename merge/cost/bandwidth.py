"""Sums up the bandwidth of collectives by op, group, size and reach."""

from __future__ import annotations

import polars as pl

BY = ("op", "group_description", "num_ranks", "between_hosts", "size_bucket")
"""What collectives are put together by; groups of one description and size are alike: the tp groups of all hosts."""


def bandwidths(rows: pl.DataFrame, *, steps: int | None = None) -> pl.DataFrame:
    """Bandwidth over collectives, as nccl-tests count it.

    Sizes are put together by powers of two: `size_bucket` is the largest that is not larger than the mean input of a
    rank, in bytes; 0 for none.

    Args:
        rows: `MERGED_COLLECTIVES`.
        steps: Only the first so many steps; all without.

    Returns:
        A row per `BY`, most bytes first: collectives; how many have a bandwidth; total input bytes of a rank; algbw and
        busbw in bytes a second: of the total, which is total size / total time, and the median and maximum.
    """
    if steps is not None:
        rows = rows.filter(pl.col("step") < steps)
    each = rows.group_by("collective").agg(
        pl.col("op", "group_description", "num_ranks", "between_hosts", "algbw", "busbw").first(),
        pl.col("size_bytes").mean().alias("bytes"))
    bucket = pl.when(pl.col("bytes") >= 1).then(2 ** pl.col("bytes").clip(1).log(2).floor().cast(pl.Int64)).otherwise(0)
    known = pl.col("algbw").is_not_null()
    # of one kind sizes are proportional to input bytes, so that these weigh the harmonic mean
    time = (pl.col("bytes") / pl.col("algbw")).filter(known).sum()
    total = pl.col("bytes").filter(known).sum()
    factor = (pl.col("busbw") / pl.col("algbw")).drop_nulls().first()
    return each.with_columns(bucket.cast(pl.Int64).alias("size_bucket")).group_by(BY, maintain_order=True).agg(
        pl.len().cast(pl.Int64).alias("num_collectives"), known.sum().cast(pl.Int64).alias("num_measured"),
        pl.col("bytes").sum().alias("total_bytes"),
        pl.when(time > 0).then(total / time).alias("algbw"),
        pl.when(time > 0).then(total / time * factor).alias("busbw"),
        pl.col("busbw").median().alias("busbw_median"), pl.col("busbw").max().alias("busbw_max"),
    ).sort("total_bytes", "op", "num_ranks", descending=[True, False, False])
