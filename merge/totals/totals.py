"""Totals per GPU and of the model, from the tables of all ranks.

The model total of a quantity is mp_size x the mean over ranks: doubling the data-parallel size changes neither. It
is the sum over one model-parallel group, averaged over its replicas.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from distprof.contract.merged import QUANTITIES, TIMES
from distprof.contract.mesh import part_of
from distprof.contract.passes import TIME
from distprof.contract.problems import RecordedLightly
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.totals.description import SPREAD
from distprof.merge.totals.held_parameters import HeldParameters
from distprof.merge.totals.operator_sums import FLOPS_OF_PHASE
from distprof.merge.totals.parameters import model_params
from distprof.merge.totals.recorded_tables import RecordedTables
from distprof.merge.totals.step_time import on_device, step_time

PARAMS = ("params", "stored_params", "unique_params")
Spread = dict[str, float | int | None]


def per_rank(run: Run, tables: RecordedTables) -> pl.DataFrame:
    """One row per rank: `rank`, every quantity, every time as a part of the step time; null where the rank did not
    record it.
    """
    timed = _timed(on_device(tables.steps))
    found = (
        pl.DataFrame([_params(rank) for rank in run.ranks],
                     schema=dict.fromkeys(("rank", *PARAMS, "stage"), pl.Int64))
        .join(tables.operators.of_ranks, on="rank", how="left")
        .join(timed, on="rank", how="left")
        .sort("rank")
    )
    return _with_counts_of_replicas(run, found) if run.light_ranks else found


def _timed(steps: pl.DataFrame) -> pl.DataFrame:
    """What timers show of each rank, as parts of the step time."""
    timed = steps.filter(pl.col("pass") == TIME).group_by("rank", maintain_order=True).agg(
        *(pl.col(column).mean().alias(name) for name, column in TIMES.items()), pl.col("samples").mean())
    usual, measured = step_time(steps), timed["step_ns"].mean()
    scale = 1.0 if usual is None or not isinstance(measured, float) else usual.scale(measured)
    return timed.with_columns(pl.col(list(TIMES)) * scale)


def _with_counts_of_replicas(run: Run, ranks: pl.DataFrame) -> pl.DataFrame:
    """Ranks that were not counted have the counts of those with the same part of the model, where there are any."""
    parts = [str(part_of(rank.coordinates)) for rank in sorted(run.ranks, key=lambda rank: rank.number)]
    counts = (*FLOPS_OF_PHASE, "fwd_macs")
    return ranks.with_columns(part=pl.Series(parts, dtype=pl.String)).with_columns(
        pl.col(name).fill_null(pl.col(name).mean().over("part").round().cast(ranks.schema[name])) for name in counts
    ).drop("part")


def _params(rank: Rank) -> dict[str, int | None]:
    params = rank.recorded.params if rank.recorded is not None else None
    return {"rank": rank.number, "stage": (rank.coordinates or {}).get("pp", 0),
            **{name: getattr(params, name, None) for name in PARAMS}}


def spread(ranks: pl.DataFrame, quantity: str) -> Spread:
    """mean, min and max over ranks, and the ranks of the extremes; nulls where no rank has it."""
    known = ranks.filter(pl.col(quantity).is_not_null()).sort(quantity, "rank")
    if known.is_empty():
        return dict.fromkeys(SPREAD)
    first, last = known.row(0, named=True), known.row(-1, named=True)
    return {"mean": as_whole(known[quantity].mean()), "min": as_whole(first[quantity]), "max": as_whole(last[quantity]),
            "min_rank": first["rank"], "max_rank": last["rank"]}


def as_whole(value: object) -> Any:
    """An int where a float is a whole number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def model_totals(run: Run, ranks: pl.DataFrame, parameters: HeldParameters) -> dict[str, float | int | None]:
    """mp_size x the mean over ranks for each quantity, and parameters without replicas.

    Args:
        run: Its sizes.
        ranks: See `per_rank`.
        parameters: What ranks hold.
    """
    means = {quantity: ranks[quantity].mean() for quantity in QUANTITIES}
    if any(isinstance(one, RecordedLightly) and not one.parts_counted for one in run.remarks):
        means |= dict.fromkeys((*FLOPS_OF_PHASE, "fwd_macs"))  # the parts that were counted may not be like the others
    totals = {name: None if mean is None else as_whole(run.mp_size * float(str(mean))) for name, mean in means.items()}
    found = model_params(run, parameters)
    if found is None:
        return {**totals, "unique_params": _unique_params(run, ranks), "active_params": None}
    return {**totals, "stored_params": found.stored, "unique_params": found.unique, "active_params": found.active}


def _unique_params(run: Run, ranks: pl.DataFrame) -> int | None:
    """The sum over pipeline stages; the ranks of a stage agree on it."""
    unique = pl.col("unique_params")
    stages = ranks.group_by("stage").agg(unique.max(), unique.null_count().alias("unknown"))
    all_there = len(stages) == run.topology.get("pp", 1) and not stages["unknown"].sum()
    return int(stages["unique_params"].sum()) if all_there else None
