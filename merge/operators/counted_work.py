"""Takes FLOPs and bytes of timed operators from the count pass, and derives the least time that they need."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import polars as pl

from distprof.merge.operators.shapes import tensors_of
from distprof.merge.operators.timeline.grouped_calls import COSTS
from distprof.merge.operators.timeline.rank_timeline import COPIES, OPERATOR, TYPES
from distprof.merge.run.run_model import Rank
from distprof.peaks.published import Peak, peak

_KEYS = ("rank", "module_path", "op", "phase", "tensors")
"""Columns by which timed and counted calls are joined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How much of the counted work belongs to calls that were timed, per step and rank."""

    flops: float
    counted_flops: float
    calls: float
    counted_calls: float

    @property
    def ratio(self) -> float | None:
        """Covered share of the counted FLOPs; None if none were counted."""
        return self.flops / self.counted_flops if self.counted_flops else None


def with_counts(rows: pl.DataFrame, ops: pl.DataFrame, steps: pl.DataFrame) -> tuple[pl.DataFrame, Coverage | None]:
    """Sets `COSTS` of the operators of a run.

    A row gets the values of the count pass if it has as many calls per step as were counted for the same module,
    operator, shapes and phase; otherwise they stay null.

    Args:
        rows: `rank_operators` of all ranks.
        ops: `OPS` of all ranks.
        steps: `rank` and `steps`, the number of steps that the rows of each rank come from.

    Returns:
        The rows, and how much of the count they cover; None if nothing was counted.
    """
    if ops.is_empty() or rows.is_empty():
        return rows, None
    rows, moved = rows.drop(COSTS), rows.select(COSTS)
    keyed = rows.with_columns(
        pl.col("op", "module_path").cast(pl.String), tensors=_tensors(rows["shapes"]),
        phase=pl.col("phase").cast(pl.String).replace({None: "forward", "data": "forward"}))
    per_call = ops.with_columns(tensors=_tensors(ops["shapes"])).group_by(_KEYS).agg(
        counted_calls=pl.col("calls").sum(), counted_flops=pl.col("flops").sum(),
        counted_causal_flops=(pl.col("flops") - 2 * (pl.col("macs") - pl.col("causal_macs"))).sum(),
        counted_bytes=pl.col("io_bytes").sum())
    timed = keyed.filter(pl.col("type") == TYPES[OPERATOR], pl.col("step").is_not_null()).group_by(_KEYS).agg(
        timed_calls=pl.col("calls").sum()).join(steps, on="rank")
    agree = per_call.join(timed, on=_KEYS, nulls_equal=True).filter(
        pl.col("timed_calls") == pl.col("counted_calls") * pl.col("steps"))
    found = keyed.join(agree, on=_KEYS, how="left", nulls_equal=True, maintain_order="left")
    share = pl.col("calls") / pl.col("counted_calls")
    is_timed = (pl.col("type") == TYPES[OPERATOR]) & pl.col("step").is_not_null()
    is_copy = pl.col("type").cast(pl.String).is_in(COPIES)
    return found.with_columns(
        *rows.select("op", "module_path", "phase"),
        **{name: pl.when(is_timed).then((pl.col(f"counted_{name}") * share).round()).when(is_copy).then(
            moved[name]).cast(pl.Int64) for name in COSTS},
    ).select(*rows.columns, *COSTS), Coverage(
        flops=float(agree["counted_flops"].sum()), counted_flops=float(per_call["counted_flops"].sum()),
        calls=float(agree["counted_calls"].sum()), counted_calls=float(per_call["counted_calls"].sum()))


def _tensors(shapes: pl.Series) -> pl.Series:
    """Returns only the shapes of tensors, as text: the profiler writes a scalar like a tensor without dimensions."""
    texts = shapes.unique().to_list()
    known = {text: tensors_of(text) for text in texts if text is not None}
    return shapes.cast(pl.String).replace_strict(known, default=None, return_dtype=pl.String)


DTYPES = {"float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16",
          "c10::Float8_e4m3fn": "float8_e4m3fn", "c10::Float8_e5m2": "float8_e5m2",
          "c10::Float8_e4m3fnuz": "float8_e4m3fnuz", "c10::Float8_e5m2fnuz": "float8_e5m2fnuz", "signed char": "int8"}
"""Type of an input as the profiler writes it -> dtype."""
LATENCY_RATIO = 0.1
"""An operator whose least time is below this share of its actual time is limited by neither compute nor memory."""
Rates = tuple[float, float]


def with_limits(rows: pl.DataFrame, ranks: Sequence[Rank], given: tuple[float | None, float | None]) -> pl.DataFrame:
    """Adds `compute_ns` and `memory_ns`, null if FLOPs, bytes or the rates of the device for that dtype are unknown.

    Args:
        rows: Rows of `run_operators`, with `causal_flops` and `bytes`.
        ranks: The ranks of the run, with their devices.
        given: Peak FLOP/s and bytes/s in place of the published ones.
    """
    is_copy = pl.col("type").cast(pl.String).is_in(COPIES)  # copies to and from the host take another path
    kinds, by_number = rows.select("rank", "dtypes").unique(), {rank.number: rank for rank in ranks}
    found = [_rates(by_number[rank], dtypes, given) for rank, dtypes in kinds.iter_rows()]
    rates = kinds.with_columns(
        peak=pl.Series([None if one is None else one[0] for one in found], dtype=pl.Float64),
        bandwidth=pl.Series([None if one is None else one[1] for one in found], dtype=pl.Float64))
    return rows.join(rates, on=["rank", "dtypes"], how="left", nulls_equal=True, maintain_order="left").with_columns(
        compute_ns=pl.when(~is_copy).then(pl.col("causal_flops") / pl.col("peak") * 1e9),
        memory_ns=pl.when(~is_copy).then(pl.col("bytes") / pl.col("bandwidth") * 1e9),
    ).drop("peak", "bandwidth")


def _rates(rank: Rank, dtypes: str | None, given: tuple[float | None, float | None]) -> Rates | None:
    flops_per_second, bytes_per_second = given
    published = _published(rank, _first(dtypes or ""))
    flops_per_second = flops_per_second or (published.flops_per_second if published else None)
    bytes_per_second = bytes_per_second or (published.bytes_per_second if published else None)
    return None if flops_per_second is None or bytes_per_second is None else (flops_per_second, bytes_per_second)


def _published(rank: Rank, dtype: str) -> Peak | None:
    """Returns the published peak rates; None also if products of float32 may or may not have been computed in TF32."""
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
    """Returns the dtype of the first tensor in a text like `["float", "Scalar"]`; '' if there is none."""
    try:
        names = json.loads(dtypes)
    except ValueError:
        return ""
    return next((DTYPES[name] for name in names if isinstance(name, str) and name in DTYPES), "") \
        if isinstance(names, list) else ""
