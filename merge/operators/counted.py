"""FLOPs and bytes of timed operators: those that the count pass recorded for calls of the same kind."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from distprof.merge.operators.shapes import tensors_of
from distprof.merge.operators.timeline.rank_timeline import COPIES, OPERATOR, TYPES

_KEYS = ("rank", "module_path", "op", "phase", "tensors")
"""What a timed call and a counted one share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How much of what was counted belongs to a call that was timed, a step and rank."""

    flops: float
    counted_flops: float
    calls: float
    counted_calls: float

    @property
    def ratio(self) -> float | None:
        """Of the FLOPs; None where none were counted."""
        return self.flops / self.counted_flops if self.counted_flops else None


def with_counts(rows: pl.DataFrame, ops: pl.DataFrame, steps: pl.DataFrame) -> tuple[pl.DataFrame, Coverage | None]:
    """Sets `flops` and `bytes` of the operators of a run.

    A row gets those of the count pass where it has as many calls a step as were counted there, for the same module,
    operator, shapes and phase; else they stay null.

    Args:
        rows: `rank_operators` of all ranks.
        ops: `OPS` of all ranks.
        steps: `rank` and `steps`, how many the rows of each rank are from.

    Returns:
        The rows, and how much of the count they cover; None where nothing was counted.
    """
    if ops.is_empty() or rows.is_empty():
        return rows, None
    rows, moved = rows.drop("flops", "bytes"), rows.select("flops", "bytes")
    keyed = rows.with_columns(
        pl.col("op", "module_path").cast(pl.String), tensors=_tensors(rows["shapes"]),
        phase=pl.col("phase").cast(pl.String).replace({None: "forward", "data": "forward"}))
    per_call = ops.with_columns(tensors=_tensors(ops["shapes"])).group_by(_KEYS).agg(
        counted_calls=pl.col("calls").sum(), counted_flops=pl.col("flops").sum(),
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
        flops=pl.when(is_timed).then((pl.col("counted_flops") * share).round()).when(is_copy).then(
            moved["flops"]).cast(pl.Int64),
        bytes=pl.when(is_timed).then((pl.col("counted_bytes") * share).round()).when(is_copy).then(
            moved["bytes"]).cast(pl.Int64),
    ).select(*rows.columns, "flops", "bytes"), Coverage(
        flops=float(agree["counted_flops"].sum()), counted_flops=float(per_call["counted_flops"].sum()),
        calls=float(agree["counted_calls"].sum()), counted_calls=float(per_call["counted_calls"].sum()))


def _tensors(shapes: pl.Series) -> pl.Series:
    """Shapes of tensors alone, as text: to the profiler a scalar looks like a tensor without dimensions."""
    texts = shapes.unique().to_list()
    known = {text: tensors_of(text) for text in texts if text is not None}
    return shapes.cast(pl.String).replace_strict(known, default=None, return_dtype=pl.String)
