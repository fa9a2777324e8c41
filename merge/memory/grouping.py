"""What was alive at the peaks, and what a rank allocated, added up by category, module, operator or phase."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import polars as pl

from distprof.errors import UsageError
from distprof.merge.memory.allocations import SCHEMA
from distprof.merge.memory.peak import Peak

BY = {"category": "category", "module": "module_path", "class": "class_name", "op": "op", "phase": "phase",
      "rank": "rank", "device": "device"}
"""What `--by` takes, and the column of it."""
NUMBERS = ("peak_bytes", "peak_tensors", "largest_bytes", "allocated_bytes", "allocations", "kept_bytes")
"""Columns of `grouped` behind those of `--by`."""


def grouped(rows: pl.DataFrame, peaks: Sequence[Peak], by: Sequence[str]) -> pl.DataFrame:
    """Sums over the ranks.

    Args:
        rows: Of `allocations_of`.
        peaks: Of the same ranks.
        by: Keys of `BY`.

    Returns:
        The columns of `by`; `peak_bytes` and `peak_tensors` that were alive at the peak of their device,
        `largest_bytes` of one of them, `allocated_bytes` and `allocations` of the whole recording, and `kept_bytes`,
        the part of them that forward made and backward needed. Largest at the peak first.

    Raises:
        UsageError: `by` has another key.
    """
    keys = [_column(one) for one in dict.fromkeys(by)]
    size = pl.col("size_bytes")
    alive = pl.concat([pl.DataFrame(schema=SCHEMA), *(peak.alive for peak in peaks)])
    at_peak = alive.group_by(keys).agg(peak_bytes=size.sum(), peak_tensors=pl.len().cast(pl.Int64),
                                       largest_bytes=size.max())
    made = rows.group_by(keys, maintain_order=True).agg(
        allocated_bytes=size.sum(), allocations=pl.len().cast(pl.Int64),
        kept_bytes=size.filter(pl.col("category") == "activation").sum())
    both = made.join(at_peak, on=keys, how="left", nulls_equal=True, maintain_order="left")
    return both.select(*keys, *(pl.col(name).fill_null(0) for name in NUMBERS)).sort(
        "peak_bytes", "allocated_bytes", descending=True, maintain_order=True)


def _column(key: str) -> str:
    if key not in BY:
        near = difflib.get_close_matches(key, BY, n=1)
        raise UsageError(f"expected {', '.join(BY)} for --by, found {key!r}", hint=f"--by {near[0]}" if near else None)
    return BY[key]
