"""The least time that the FLOPs and the bytes of operators take on their devices."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache

import polars as pl

from distprof.merge.operators.timeline.rank_timeline import COPIES
from distprof.merge.run.run_model import Rank
from distprof.peaks.published import Peak, peak

DTYPES = {"float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16",
          "c10::Float8_e4m3fn": "float8_e4m3fn", "c10::Float8_e5m2": "float8_e5m2", "signed char": "int8"}
"""Type of an input as the profiler writes it -> dtype."""
LATENCY_RATIO = 0.1
"""An operator that takes more than ten times its least time is limited by neither compute nor memory."""
Rates = tuple[float, float]


def with_limits(rows: pl.DataFrame, ranks: Sequence[Rank], given: tuple[float | None, float | None]) -> pl.DataFrame:
    """Adds `compute_ns` and `memory_ns`; null where FLOPs, or the rates of the device in that type, are unknown.

    Args:
        rows: Of `run_operators`, with `flops` and `bytes`.
        ranks: Those of the run, with their devices.
        given: Peak FLOP/s and bytes/s in place of the published ones.
    """
    is_copy = pl.col("type").cast(pl.String).is_in(COPIES)  # those to and from the host take another way
    kinds, by_number = rows.select("rank", "dtypes").unique(), {rank.number: rank for rank in ranks}
    found = [_rates(by_number[rank], dtypes, given) for rank, dtypes in kinds.iter_rows()]
    rates = kinds.with_columns(
        peak=pl.Series([None if one is None else one[0] for one in found], dtype=pl.Float64),
        bandwidth=pl.Series([None if one is None else one[1] for one in found], dtype=pl.Float64))
    return rows.join(rates, on=["rank", "dtypes"], how="left", nulls_equal=True, maintain_order="left").with_columns(
        compute_ns=pl.when(~is_copy).then(pl.col("flops") / pl.col("peak") * 1e9),
        memory_ns=pl.when(~is_copy).then(pl.col("bytes") / pl.col("bandwidth") * 1e9),
    ).drop("peak", "bandwidth")


def _rates(rank: Rank, dtypes: str | None, given: tuple[float | None, float | None]) -> Rates | None:
    flops_per_second, bytes_per_second = given
    published = _published(rank, _first(dtypes or ""))
    flops_per_second = flops_per_second or (published.flops_per_second if published else None)
    bytes_per_second = bytes_per_second or (published.bytes_per_second if published else None)
    return None if flops_per_second is None or bytes_per_second is None else (flops_per_second, bytes_per_second)


def _published(rank: Rank, dtype: str) -> Peak | None:
    """None as well where products of float32 may be TF32, of which nothing says whether they are."""
    device = rank.device_name
    if device is None:
        return None
    tf32 = peak(device, "tf32") if dtype == "float32" else None
    if tf32 is None:
        return peak(device, dtype)
    allowed = set() if rank.recorded is None else set(rank.recorded.tf32.values())
    return None if len(allowed) != 1 else tf32 if True in allowed else peak(device, dtype)


@lru_cache(maxsize=1 << 12)
def _first(dtypes: str) -> str:
    """The dtype of the first tensor of `["float", "Scalar"]`; '' for none."""
    try:
        names = json.loads(dtypes)
    except ValueError:
        return ""
    return next((DTYPES[name] for name in names if isinstance(name, str) and name in DTYPES), "") \
        if isinstance(names, list) else ""
