"""What was alive at the peaks, and what a rank allocated, added up by category, module, operator or phase."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import polars as pl

from distprof.errors import UsageError
from distprof.merge.memory.allocations import SCHEMA
from distprof.merge.memory.peak import Peak, unused_at

BY = {"category": "category", "module": "module_path", "class": "class_name", "op": "op", "phase": "phase",
      "rank": "rank", "device": "device"}
"""What `--by` takes, and the column of it."""
NUMBERS = ("peak_bytes", "peak_tensors", "largest_bytes", "unused_bytes", "allocated_bytes", "allocations",
           "kept_bytes", "unused_byte_s")
"""Columns of `grouped` behind those of `--by`."""


def grouped(rows: pl.DataFrame, peaks: Sequence[Peak], by: Sequence[str]) -> pl.DataFrame:
    """Sums over the ranks.

    Args:
        rows: Of `allocations_of`.
        peaks: Of the same ranks.
        by: Keys of `BY`.

    Returns:
        The columns of `by`; `peak_bytes` and `peak_tensors` that were alive at the peak of their device,
        `largest_bytes` of one of them, and `unused_bytes` of those that were not used any more; `allocated_bytes` and
        `allocations` of the whole recording, and of these `kept_bytes`, which forward made and backward needed, and
        `unused_byte_s`: bytes times the seconds from their last use until they were freed. Largest at the peak first.

    Raises:
        UsageError: `by` has another key.
    """
    keys = [_column(one) for one in dict.fromkeys(by)]
    size = pl.col("size_bytes")
    unused = [peak.alive.with_columns(is_unused=unused_at(peak.time_ns)) for peak in peaks]
    alive = pl.concat([pl.DataFrame(schema=SCHEMA | {"is_unused": pl.Boolean()}), *unused])
    at_peak = alive.group_by(keys).agg(peak_bytes=size.sum(), peak_tensors=pl.len().cast(pl.Int64),
                                       largest_bytes=size.max(), unused_bytes=size.filter("is_unused").sum())
    made = rows.group_by(keys, maintain_order=True).agg(
        allocated_bytes=size.sum(), allocations=pl.len().cast(pl.Int64),
        kept_bytes=size.filter(pl.col("category") == "activation").sum(),
        unused_byte_s=(size * (pl.col("unused_ns") / 1e9)).sum())
    both = made.join(at_peak, on=keys, how="left", nulls_equal=True, maintain_order="left")
    return both.select(*keys, *(pl.col(name).fill_null(0) for name in NUMBERS)).sort(
        "peak_bytes", "allocated_bytes", descending=True, maintain_order=True)


def longest_unused(rows: pl.DataFrame, top: int | None) -> pl.DataFrame:
    """Allocations that were kept for nothing, by size times the time for which they were; `top` of them, or all."""
    kept = rows.filter(pl.col("unused_ns") > 0).with_columns(
        unused_byte_s=pl.col("size_bytes") * (pl.col("unused_ns") / 1e9))
    found = kept.sort("unused_byte_s", "made_ns", descending=[True, False]).drop("first", "last")
    return found if top is None else found.head(top)


def _column(key: str) -> str:
    if key not in BY:
        near = difflib.get_close_matches(key, BY, n=1)
        raise UsageError(f"unknown value {key!r} for --by; choose from {', '.join(BY)}",
                         hint=f"--by {near[0]}" if near else None)
    return BY[key]
