"""Slack: how much longer a module could take on a rank before a step ends later."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from distprof.merge.program.job import Job
from distprof.merge.program.run_program import RunProgram
from distprof.merge.replay.chain import Chains
from distprof.merge.replay.graph import Graph
from distprof.merge.replay.order import Order
from distprof.merge.replay.slack import NEVER, latest_times

SCHEMA = {"rank": pl.Int64(), "phase": pl.String(), "module_path": pl.String(), "step": pl.Int64(),
          "slack_ns": pl.Int64(), "work_ns": pl.Int64()}


def slack_of(program: RunProgram, job: Job, graph: Graph, order: Order, chains: Chains,
             steps: Sequence[int]) -> pl.DataFrame:
    """The least slack of the pieces of work of each activity.

    A step ends when its last rank does. No step of the job may end later, neither this one nor a later one.

    Args:
        program: What ranks did.
        job: Its graph.
        graph: The same without joins that are stuck.
        order: Of it.
        chains: Of it.
        steps: Those that are looked at.

    Returns:
        `SCHEMA`: of each rank, activity and step `slack_ns`, the least of its pieces, and `work_ns`, what they take.
    """
    events, deadlines = graph.events, np.full(len(graph.events), NEVER, np.int64)
    for step in np.unique(job.steps[:, 1]).tolist():
        marks = job.steps[job.steps[:, 1] == step, 3]
        deadlines[marks] = events.at_ns[marks].max()
    slack = np.maximum(latest_times(graph, order, deadlines) - chains.came_ns, 0)
    pieces = job.pieces
    chosen = np.flatnonzero(np.isin(job.step[pieces.event], steps) & (pieces.ns > 0))
    event, label = pieces.event[chosen], pieces.label[chosen]
    least = pl.DataFrame({"rank": job.ranks[events.rank[event]], "label": label, "step": job.step[event],
                          "slack_ns": slack[event], "work_ns": pieces.ns[chosen]}).group_by(
        "rank", "label", "step", maintain_order=True).agg(pl.col("slack_ns").min(), pl.col("work_ns").sum())
    known = program.activities.known
    return least.with_columns(
        phase=pl.Series([known[one].kind for one in least["label"]], dtype=pl.String),
        module_path=pl.Series([known[one].where for one in least["label"]], dtype=pl.String),
    ).select(pl.col(name).cast(kind) for name, kind in SCHEMA.items())
