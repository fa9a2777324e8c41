"""Breaks each step of each rank down into six parts that add up to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from distprof.merge.activity.activities import Activities
from distprof.merge.activity.intervals import Intervals
from distprof.merge.activity.rank_activity import RankActivity, RankCollectives

PARTS = ("compute", "waiting", "moving", "data", "optimizer", "host")
"""Parts of a step; they add up to it."""
SCHEMA = {"rank": pl.Int64, "step": pl.Int64, "duration_ns": pl.Int64, **{f"{part}_ns": pl.Int64 for part in PARTS},
          "message_waiting_ns": pl.Int64, "overlapped_ns": pl.Int64, "communication_ns": pl.Int64,
          "overlap_ratio": pl.Float64}
"""Columns of `step_breakdown`."""


def step_breakdown(windows: pl.DataFrame, calls: Mapping[int, RankCollectives], did: Mapping[int, RankActivity],
                   activities: Activities) -> pl.DataFrame:
    """Splits every step of every rank that has a timeline.

    `waiting_ns` and `moving_ns` are exposed communication, before and after the last rank had come. `data_ns` is data
    loading, `optimizer_ns` the optimizer, `compute_ns` operators elsewhere (kernels on a GPU), `host_ns` the rest:
    these add up to `duration_ns`. `message_waiting_ns` is the part of `waiting_ns` in sends and receives.
    `communication_ns` is the time in which any collective was in progress, `overlapped_ns` the part of it in which
    something was computed, `overlap_ratio` this as a fraction; null without communication.

    Args:
        windows: Steps of the ranks: rank, step, start_ns, end_ns, duration_ns.
        calls: Collectives by rank.
        did: What each rank was doing.
        activities: Names of activities.
    """
    found = [_steps_of(rows, calls[rank], did[rank], activities) for (rank,), rows in windows.partition_by(
        "rank", as_dict=True, maintain_order=True).items() if rank in did]
    return pl.concat([pl.DataFrame(schema=SCHEMA), *found])


def _steps_of(windows: pl.DataFrame, calls: RankCollectives, did: RankActivity, activities: Activities) -> pl.DataFrame:
    starts, ends = windows["start_ns"].to_numpy(), windows["end_ns"].to_numpy()
    waits = calls.waits().within(did.blocked)
    waiting = Intervals.of(waits.starts, waits.ends)
    for_messages = calls.messages.waits().within(did.blocked)
    rest = did.lane.outside(did.blocked)
    data, optimizer = (rest.intervals([number for number, known in enumerate(activities.known) if known.kind == kind])
                       for kind in ("data", "optimizer"))
    spans = {"compute": did.computing - data - optimizer - did.blocked, "waiting": waiting,
             "moving": did.blocked - waiting, "data": data, "optimizer": optimizer}
    messages = (Intervals.of(for_messages.starts, for_messages.ends) & waiting).within(starts, ends)
    parts = {f"{part}_ns": of.within(starts, ends) for part, of in spans.items()}
    communication = calls.running.within(starts, ends)
    overlapped = (calls.running & did.computing).within(starts, ends)
    split = windows.select("rank", "step", "duration_ns").with_columns(
        **{name: pl.Series(values, dtype=pl.Int64) for name, values in parts.items()},
        host_ns=windows["duration_ns"] - pl.Series(np.sum(list(parts.values()), axis=0), dtype=pl.Int64),
        message_waiting_ns=pl.Series(messages, dtype=pl.Int64),
        overlapped_ns=pl.Series(overlapped, dtype=pl.Int64), communication_ns=pl.Series(communication, dtype=pl.Int64))
    ratio = pl.when(pl.col("communication_ns") > 0).then(pl.col("overlapped_ns") / pl.col("communication_ns"))
    return split.with_columns(overlap_ratio=ratio).select(list(SCHEMA))


def mean_steps(breakdown: pl.DataFrame) -> list[dict[str, Any]]:
    """Returns a row per rank with means over its steps; `overlap_ratio` is that of all steps together, not a mean."""
    columns = ["duration_ns", *(f"{part}_ns" for part in PARTS), "message_waiting_ns", "overlapped_ns"]
    return breakdown.group_by("rank").agg(pl.col(columns).mean(), overlap_ratio=overlap_ratio()).sort("rank").to_dicts()


def overlap_ratio() -> pl.Expr:
    """Returns the fraction of communication that computation hides, over all steps together; null without any."""
    communication = pl.col("communication_ns").sum()
    return pl.when(communication > 0).then(pl.col("overlapped_ns").sum() / communication)
