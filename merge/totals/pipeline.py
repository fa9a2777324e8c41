"""Bubble and balance of a pipeline, from what its stages spent their steps on."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from distprof.merge.run.run_model import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage, mean over its ranks and steps."""

    stage: int
    work_ns: float
    """Time of a step in which it neither waits nor moves data."""
    waiting_ns: float
    """Time of a step in which it waits for messages of other stages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """How well the stages of a job keep each other busy."""

    stages: list[Stage]
    bubble_ratio: float
    """Share of a step in which a stage waits for messages of others, mean over stages. Of equal stages under 1F1B or
    GPipe it is (p - 1) / (m + p - 1) with p stages and m microbatches (Narayanan et al. 2021, section 2.2)."""
    imbalance_ratio: float
    """Work of the stage that works longest, divided by the mean over stages."""


def pipeline_of(run: Run, breakdown: pl.DataFrame) -> Pipeline | None:
    """Reads the stages of a job.

    Args:
        run: Its ranks and their places.
        breakdown: See `step_breakdown`.

    Returns:
        None for a job without stages, and where the steps of a stage are not known.
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
