"""`communication` of `summary.json`: how much of a step was waiting, and for whom."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import polars as pl

from distprof.contract.tables import EVENTS
from distprof.merge.blame.analysis import analyse
from distprof.merge.cost.collectives import collectives_of
from distprof.merge.run.run_model import Run

MOST_EVENTS = 5_000_000
"""Events of all ranks up to which a summary looks at them; `distprof comms` looks at any number."""
NAMED = 5
"""Ranks that a summary lists, the most expensive first."""


def communication(run: Run, rows: pl.DataFrame | None = None) -> dict[str, Any] | None:
    """Steps looked at, mean share of waiting and moving in them, and culprits.

    Args:
        run: On one clock.
        rows: Its collectives; matched here where they are not given.

    Returns:
        `communication` of `summary.json`; None where nothing was recorded, or too much to look at on the side.
    """
    if sum(rank.info.files.get(EVENTS.file) or 0 for rank in run.ranks) > MOST_EVENTS:
        return None
    rows = collectives_of(run) if rows is None else rows
    if rows.is_empty():
        return None
    found = analyse(run, rows)
    steps = found.breakdown
    total = int(steps["duration_ns"].sum())
    return {
        "steps": found.steps,
        **{f"{part}_ratio": int(steps[f"{part}_ns"].sum()) / total if total else None
           for part in ("waiting", "moving")},
        "culprits": [{**asdict(one), "certain": one.certain} for one in found.culprits[:NAMED]],
    }
