"""`communication` of `summary.json`: how much of a step was waiting, and for whom."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import polars as pl

from distprof.contract.tables import EVENTS
from distprof.merge.blame.analysis import analyse
from distprof.merge.clock.model import Clock
from distprof.merge.run.run_model import Run

MOST_EVENTS = 5_000_000
"""Events of all ranks up to which a summary looks at them; `distprof comms` looks at any number."""
NAMED = 5
"""Ranks that a summary lists, the most expensive first."""


def communication(run: Run, clock: Clock, rows: pl.DataFrame, steps: pl.DataFrame | None) -> dict[str, Any] | None:
    """Steps looked at, mean share of waiting and moving in them, and culprits.

    Args:
        run: What was recorded.
        clock: Of the run.
        rows: `MERGED_COLLECTIVES` of it.
        steps: Its `STEPS`; None for traces of other programs.

    Returns:
        `communication` of `summary.json`; None without collectives, and with more events than `MOST_EVENTS`.
    """
    if sum(rank.recorded.files.get(EVENTS.file) or 0 for rank in run.ranks if rank.recorded is not None) > MOST_EVENTS:
        return None
    if rows.is_empty():
        return None
    found = analyse(run, clock, rows, steps)
    split = found.breakdown
    total = int(split["duration_ns"].sum())
    return {
        "steps": found.steps,
        **{f"{part}_ratio": int(split[f"{part}_ns"].sum()) / total if total else None
           for part in ("waiting", "moving")},
        "culprits": [{**asdict(one), "certain": one.certain} for one in found.culprits[:NAMED]],
    }
