"""Computes totals per GPU and of the model from the tables of all ranks; also evaluation, MFU and pipeline stages.

The model total of a quantity is mp_size x the mean over ranks, which does not depend on the data-parallel size. It is
the sum over one model-parallel group, averaged over its replicas. Evaluation is not part of totals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import polars as pl

from distprof.contract.merged import QUANTITIES, TIMES, MfuBasis, PeakUsed
from distprof.contract.mesh import part_of
from distprof.contract.passes import TIME
from distprof.contract.problems import RecordedLightly
from distprof.contract.tables import EVALUATION
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.totals.description import SPREAD
from distprof.merge.totals.modules import as_whole
from distprof.merge.totals.operator_sums import FLOPS_OF_PHASE
from distprof.merge.totals.parameters import HeldParameters, model_params
from distprof.merge.totals.recorded_tables import RecordedTables
from distprof.merge.totals.step_time import StepTime, on_device
from distprof.peaks.published import peak

PARAMS = ("params", "stored_params", "unique_params")
Spread = dict[str, float | int | None]


def per_rank(run: Run, tables: RecordedTables) -> pl.DataFrame:
    """Returns one row per rank: `rank`, every quantity, every time as a part of the step time; null if not recorded."""
    timed = _timed(on_device(tables.steps), tables.step_time)
    found = (
        pl.DataFrame([_params(rank) for rank in run.ranks],
                     schema=dict.fromkeys(("rank", *PARAMS, "stage"), pl.Int64))
        .join(tables.operators.of_ranks, on="rank", how="left")
        .join(timed, on="rank", how="left")
        .sort("rank")
    )
    return _with_counts_of_replicas(run, found) if run.light_ranks else found


def _timed(steps: pl.DataFrame, usual: StepTime | None) -> pl.DataFrame:
    """Returns the timers' values for each rank, as parts of the step time."""
    timed = steps.lazy().filter(pl.col("pass") == TIME).group_by("rank", maintain_order=True).agg(
        *(pl.col(column).mean().alias(name) for name, column in TIMES.items()), pl.col("samples").mean()).collect()
    measured = timed["step_ns"].mean()
    scale = 1.0 if usual is None or not isinstance(measured, float) else usual.scale(measured)
    return timed.with_columns(pl.col(list(TIMES)) * scale)


def _with_counts_of_replicas(run: Run, ranks: pl.DataFrame) -> pl.DataFrame:
    """Fills the counts of ranks that were not counted from ranks with the same part of the model, if any."""
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
    """Returns mean, min and max over ranks, and the ranks of the extremes; nulls if no rank has the quantity."""
    known = sorted((value, rank) for value, rank in zip(
        ranks[quantity].to_list(), ranks["rank"].to_list(), strict=True) if value is not None)
    if not known:
        return dict.fromkeys(SPREAD)
    (least, first), (most, last) = known[0], known[-1]
    return {"mean": as_whole(pl.Series([value for value, _ in known]).mean()), "min": as_whole(least),
            "max": as_whole(most), "min_rank": first, "max_rank": last}


def model_totals(run: Run, ranks: pl.DataFrame, parameters: HeldParameters) -> dict[str, float | int | None]:
    """Returns mp_size x the mean over ranks for each quantity, and parameters without replicas.

    Args:
        run: Gives the sizes.
        ranks: See `per_rank`.
        parameters: What ranks hold.
    """
    means = {quantity: ranks[quantity].mean() for quantity in QUANTITIES}
    if any(isinstance(one, RecordedLightly) and not one.parts_counted for one in run.remarks):
        means |= dict.fromkeys((*FLOPS_OF_PHASE, "fwd_macs"))  # the counted parts may differ from the others
    totals = {name: None if mean is None else as_whole(run.mp_size * float(str(mean))) for name, mean in means.items()}
    found = model_params(run, parameters)
    if found is None:
        return {**totals, "unique_params": _unique_params(run, ranks), "active_params": None}
    return {**totals, "stored_params": found.stored, "unique_params": found.unique, "active_params": found.active}


def _unique_params(run: Run, ranks: pl.DataFrame) -> int | None:
    """Returns the sum over pipeline stages; the ranks of a stage agree on their number."""
    unique = pl.col("unique_params")
    stages = ranks.group_by("stage").agg(unique.max(), unique.null_count().alias("unknown"))
    all_there = len(stages) == run.topology.get("pp", 1) and not stages["unknown"].sum()
    return int(stages["unique_params"].sum()) if all_there else None


def steps_found(run: Run) -> dict[str, Any] | None:
    """Returns what ends a step, according to the first rank that knows it; None if no rank does."""
    found = (rank.recorded.steps_found for rank in run.ranks if rank.recorded is not None)
    first = next((one for one in found if one is not None), None)
    return None if first is None else msgspec.to_builtins(first)


def evaluation(tables: RecordedTables) -> dict[str, Any] | None:
    """Returns means of evaluation over ranks and steps; None if no step contained any.

    Returns:
        `calls` of root modules per step, over all steps in which module hooks were active; `flops` per step of the
        count
        pass; `time_ns` as part of the step time. Null if no such step was recorded.
    """
    steps, operators = tables.steps, tables.operators
    seen = steps.filter(pl.col("evaluation_calls").is_not_null())
    counted = operators.of_ops.filter(pl.col("phase") == EVALUATION)
    if not seen["evaluation_calls"].sum() and counted.is_empty():
        return None
    num_ranks = max(len(operators.of_ranks), 1)
    timed, usual = on_device(steps).filter(pl.col("pass") == TIME), tables.step_time
    measured: Any = timed["duration_ns"].mean()
    took: Any = timed["evaluation_ns"].fill_null(0).mean()
    return {
        "calls": seen["evaluation_calls"].mean(),
        "flops": float(counted["flops"].sum()) / num_ranks if len(operators.of_ranks) else None,
        "time_ns": None if took is None or usual is None else took * usual.scale(measured),
    }


def utilisation(run: Run, flops: pl.DataFrame, step_ns: float | None,
                given: float | None) -> tuple[float | None, MfuBasis]:
    """Computes MFU: the mean over ranks of the least time for the model's FLOPs / step time.

    The least time is the sum over dtypes of FLOPs / dense peak: with one dtype and equal devices MFU is model FLOPs per
    GPU / (step time x peak).

    Args:
        run: Its ranks recorded their device and whether TF32 is allowed.
        flops: FLOPs of the model, as in `OperatorSums`.
        step_ns: Time of a step with as much data as the counted one.
        given: Peak FLOP/s of each rank's device; None: it is looked up in the table of devices.

    Returns:
        MFU, None if unknown; and what it is based on, or why it is unknown.
    """
    if step_ns is None or flops.is_empty():
        return None, MfuBasis(code="no_step")
    if given is not None:
        least_ns = float(flops["flops"].sum()) / flops["rank"].n_unique() / given * 1e9
        return least_ns / step_ns, MfuBasis(code="given", peaks=(PeakUsed(flops_per_second=given),))
    return _by_table(run, flops, step_ns)


def _by_table(run: Run, flops: pl.DataFrame, step_ns: float) -> tuple[float | None, MfuBasis]:
    ranks = {rank.number: rank for rank in run.ranks}
    least_s, used = 0.0, dict[PeakUsed, None]()
    for row in flops.sort("rank", "dtype", "convolution").iter_rows(named=True):
        rank = ranks[row["rank"]]
        device = rank.device_name
        dtype = _may_be_tf32(rank, row["dtype"], "convolution" if row["convolution"] else "matmul")
        if device is None or dtype is None:
            return None, MfuBasis(code="no_device" if device is None else "no_dtype", rank=rank.number)
        # a device without TF32 computes in float32 what TF32 is allowed for
        found = peak(device, dtype) or (peak(device, "float32") if dtype == "tf32" else None)
        if found is None:
            return None, MfuBasis(code="no_peak", rank=rank.number, device=device, dtype=dtype)
        least_s += row["flops"] / found.flops_per_second
        used[PeakUsed(flops_per_second=found.flops_per_second, device=device, dtype=found.dtype, source=found.source,
                      year=found.year)] = None
    mfu = least_s / flops["rank"].n_unique() / (step_ns / 1e9)
    return mfu, MfuBasis(code="published", peaks=tuple(used))


def _may_be_tf32(rank: Rank, dtype: str | None, kind: str) -> str | None:
    return "tf32" if dtype == "float32" and rank.recorded is not None and rank.recorded.tf32.get(kind) else dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One pipeline stage; means over its ranks and steps."""

    stage: int
    work_ns: float
    """Time of a step in which it neither waits nor moves data."""
    waiting_ns: float
    """Time of a step in which it waits for messages of other stages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """How well the pipeline stages of a job keep each other busy."""

    stages: list[Stage]
    bubble_ratio: float
    """Share of a step in which a stage waits for messages of others, mean over stages. For equal stages under 1F1B or
    GPipe it is (p - 1) / (m + p - 1) with p stages and m microbatches (Narayanan et al. 2021, section 2.2)."""
    imbalance_ratio: float
    """Work of the stage with the most work / the mean over stages."""


def pipeline_of(run: Run, breakdown: pl.DataFrame) -> Pipeline | None:
    """Evaluates the pipeline stages of a job.

    Args:
        run: Gives the ranks and their coordinates.
        breakdown: See `step_breakdown`.

    Returns:
        None for a job without stages, and if the steps of a stage are unknown.
    """
    num_stages = run.topology.get("pp", 1)
    stages = pl.DataFrame([(rank.number, (rank.coordinates or {}).get("pp", 0)) for rank in run.ranks],
                          schema={"rank": pl.Int64, "stage": pl.Int64}, orient="row")
    found = breakdown.join(stages, on="rank").group_by("stage").agg(
        (pl.col("duration_ns") - pl.col("waiting_ns") - pl.col("moving_ns")).mean().alias("work_ns"),
        pl.col("message_waiting_ns").mean().alias("waiting_ns"), pl.col("duration_ns").mean()).sort("stage")
    if num_stages < 2 or len(found) < num_stages or not found["work_ns"].sum():
        return None
    return Pipeline(
        stages=[Stage(**row) for row in found.select("stage", "work_ns", "waiting_ns").to_dicts()],
        bubble_ratio=float((found["waiting_ns"] / found["duration_ns"]).mean() or 0),  # type: ignore[arg-type]
        imbalance_ratio=float(found["work_ns"].max() / found["work_ns"].mean()))  # type: ignore[operator,arg-type]
