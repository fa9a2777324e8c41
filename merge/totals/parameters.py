"""Parameters of the model from those of every rank: replicas once, shards together, experts as a token sees them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import polars as pl

from distprof.contract.mesh import DATA_PARALLEL, MODEL_PARALLEL
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.totals.level_parameters import sums_over_replicas

KEY = ("stage", "module_path", "name")
REPLICATING = (*DATA_PARALLEL, "cp")
"""Axes along which ranks hold the same parameters."""
assert {*REPLICATING, "pp", "ep", "tp"} == {*DATA_PARALLEL, *MODEL_PARALLEL}


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


def model_params(run: Run, parameters: pl.DataFrame) -> ModelParams | None:
    """Adds up parameters of all ranks.

    Args:
        run: Its ranks and their places.
        parameters: `PARAMETERS` of all ranks; of a run that was opened by its summaries, of one of each place.

    Returns:
        None where a rank has none.
    """
    held: pl.DataFrame | None = parameters
    if run.summaries is not None:
        held = None if run.missing else sums_over_replicas(run, parameters)
    if held is None or (run.summaries is None and parameters["rank"].n_unique() < run.world_size):
        return None
    rows = parameters.join(_places(run), on="rank")
    sizes = _without_ties(rows.filter("is_first_replica")).group_by(KEY).agg(
        pl.coalesce(pl.col("whole_params").max(), _different(), pl.col("params").max()).alias("unique"),
        pl.col("active_ratio").max())
    active = (sizes["unique"] * sizes["active_ratio"].fill_null(1.0)).sum()
    has_experts = sizes["active_ratio"].count() > 0
    stored = _stored(held.join(_places(run), on="rank"), run.dp_size)
    return ModelParams(unique=int(sizes["unique"].sum()), stored=stored, active=round(active) if has_experts else None)


def _places(run: Run) -> pl.DataFrame:
    # of summaries, there is one rank of each place on the other axes
    replicating = REPLICATING if run.summaries is None else tuple(set(REPLICATING) - set(DATA_PARALLEL))
    return pl.DataFrame([(rank.number, (rank.coordinates or {}).get("pp", 0), _is_first(rank, replicating))
                         for rank in run.ranks],
                        schema={"rank": pl.Int64, "stage": pl.Int64, "is_first_replica": pl.Boolean}, orient="row")


def _is_first(rank: Rank, replicating: Iterable[str]) -> bool:
    coordinates = rank.coordinates or {}
    return not any(coordinates.get(axis, 0) for axis in replicating)


def _different() -> pl.Expr:
    """Parts of a plain tensor: ranks that hold the same values hold replicas of one of them. Null without values."""
    parts = pl.struct("checksum", "params").filter(pl.col("checksum").is_not_null()).unique()
    return pl.when(parts.len() > 0).then(parts.struct.field("params").sum())


def _without_ties(rows: pl.DataFrame) -> pl.DataFrame:
    """A matrix that two pipeline stages share, like tied embeddings, stays on the first of them alone."""
    trained = pl.col("trainable") & pl.col("checksum").is_not_null() & pl.col("shape").str.contains(",")
    first = pl.col("stage") == pl.col("stage").min().over("checksum", "shape")
    return rows.filter(~trained | first)


def _stored(rows: pl.DataFrame, dp_size: int) -> int:
    """Sum over ranks, divided by the number of ranks that hold the same part."""
    sums = rows.group_by(KEY).agg(pl.col("params").sum(), pl.col("stored_params").sum()).filter(
        pl.col("stored_params") > 0)
    shards = (sums["params"] / sums["stored_params"]).round().clip(1, dp_size)
    return round(float((sums["stored_params"] * shards / dp_size).sum()))
