"""What a step of the job is, and the evaluation in it, which is in no total."""

from __future__ import annotations

from typing import Any

import msgspec
import polars as pl

from distprof.contract.passes import TIME
from distprof.contract.tables import EVALUATION
from distprof.merge.run.run_model import Run
from distprof.merge.totals.recorded_tables import RecordedTables
from distprof.merge.totals.step_time import on_device, step_time


def steps_found(run: Run) -> dict[str, Any] | None:
    """What ends a step, as the first rank that knows it has it; None where no rank does."""
    found = (rank.recorded.steps_found for rank in run.ranks if rank.recorded is not None)
    first = next((one for one in found if one is not None), None)
    return None if first is None else msgspec.to_builtins(first)


def evaluation(tables: RecordedTables) -> dict[str, Any] | None:
    """Means over ranks and steps; None where no step had any.

    Returns:
        `calls` of root modules a step, over all steps in which modules were listened to; `flops` a step of the count
        pass; `time_ns` of the step time. Null where no such step was recorded.
    """
    steps, operators = tables.steps, tables.operators
    seen = steps.filter(pl.col("evaluation_calls").is_not_null())
    counted = operators.of_ops.filter(pl.col("phase") == EVALUATION)
    if not seen["evaluation_calls"].sum() and counted.is_empty():
        return None
    num_ranks = max(len(operators.of_ranks), 1)
    timed, usual = on_device(steps).filter(pl.col("pass") == TIME), step_time(steps)
    measured: Any = timed["duration_ns"].mean()
    took: Any = timed["evaluation_ns"].fill_null(0).mean()
    return {
        "calls": seen["evaluation_calls"].mean(),
        "flops": float(counted["flops"].sum()) / num_ranks if len(operators.of_ranks) else None,
        "time_ns": None if took is None or usual is None else took * usual.scale(measured),
    }
