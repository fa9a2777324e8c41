"""Parameters of the model from those of every rank: replicas once, shards together, experts as a token sees them."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from distprof.merge.run.run_model import Run
from distprof.merge.totals.held_parameters import KEY, HeldParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParams:
    """Parameters of the whole model."""

    unique: int
    """Each once, however many ranks hold it."""
    stored: int
    """What one replica of the model takes on all its ranks, tensor-parallel replicas and padding included."""
    active: int | None
    """Those of `unique` that work on a token, if every expert gets as many; None for a model without experts that say
    how many of them a token goes to."""


def model_params(run: Run, held: HeldParameters) -> ModelParams | None:
    """Adds up parameters of all ranks.

    Args:
        run: Its sizes.
        held: What its ranks hold.

    Returns:
        None where a rank has none.
    """
    if not held.is_whole or (run.summaries is None and held.num_ranks < run.world_size):
        return None
    texts = pl.col("module_path", "name", "shape").cast(pl.String)
    sizes = _without_ties(held.first_replica.with_columns(texts)).group_by(KEY).agg(
        pl.coalesce(pl.col("whole_params").max(), _different(), pl.col("params").max()).alias("unique"),
        pl.col("active_ratio").max())
    active = (sizes["unique"] * sizes["active_ratio"].fill_null(1.0)).sum()
    has_experts = sizes["active_ratio"].count() > 0
    return ModelParams(unique=int(sizes["unique"].sum()), stored=_stored(held.sums, run.dp_size),
                       active=round(active) if has_experts else None)


def _different() -> pl.Expr:
    """Parts of a plain tensor: ranks that hold the same values hold replicas of one of them. Null without values."""
    parts = pl.struct("checksum", "params").filter(pl.col("checksum").is_not_null()).unique()
    return pl.when(parts.len() > 0).then(parts.struct.field("params").sum())


def _without_ties(rows: pl.DataFrame) -> pl.DataFrame:
    """A matrix that two pipeline stages share, like tied embeddings, stays on the first of them alone."""
    trained = pl.col("trainable") & pl.col("checksum").is_not_null() & pl.col("shape").str.contains(",")
    first = pl.col("stage") == pl.col("stage").min().over("checksum", "shape")
    return rows.filter(~trained | first)


def _stored(sums: pl.DataFrame, dp_size: int) -> int:
    """Sum over ranks, divided by the number of ranks that hold the same part."""
    there = sums.filter(pl.col("stored_params") > 0)
    shards = (there["params"] / there["stored_params"]).round().clip(1, dp_size)
    return round(float((there["stored_params"] * shards / dp_size).sum()))
