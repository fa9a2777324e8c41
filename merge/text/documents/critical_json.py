"""The data of `distprof critical-path --json`; docs/critical-path.md describes the keys."""

from __future__ import annotations

from typing import Any

import polars as pl

from distprof.merge.critical.critical_path import CriticalPath
from distprof.merge.critical.grouping import by_collective, by_kind, by_module, by_op, by_rank, slack_by_rank
from distprof.merge.critical.replayable import Replayable
from distprof.merge.totals.description import described
from distprof.merge.totals.step_time import step_time, step_time_data

DESCRIBED = ("format", "run_id", "world_size", "ranks", "missing_ranks", "problems", "remarks", "clock")


def critical_data(found: Replayable, path: CriticalPath, *, top: int | None, with_chain: bool) -> dict[str, Any]:
    """All that is known of the longest chains.

    Args:
        found: The run.
        path: Its chains.
        top: Rows of a table; all without.
        with_chain: Every link as well.
    """
    about = described(found.run, found.clock)
    durations = path.durations.with_columns(duration_ns=pl.col("end_ns") - pl.col("start_ns"))
    ns = (pl.col("end_ns") - pl.col("start_ns")).alias("time_ns")
    ranks = path.links.group_by("step", "rank").agg(ns.sum()).sort("step", "time_ns", descending=[False, True])
    each = {step: ranks.filter(pl.col("step") == step).select("rank", "time_ns").to_dicts() for step in path.steps}
    tables = {"by_rank": by_rank(path), "by_module": by_module(path), "by_op": by_op(path),
              "by_collective": by_collective(path, found.program.rows), "slack": slack_by_rank(path)}
    return {
        **{key: about[key] for key in DESCRIBED}, "kind": "critical_path",
        "pair_uncertainty_ns": found.clock.pair_uncertainty_ns(), "ranks_with_guessed_waits": found.guessed,
        "step_time": step_time_data(step_time(found.recorded)),
        "duration_ns": durations["duration_ns"].mean(), "by_kind": by_kind(path),
        "steps": [{**row, "by_rank": each[row["step"]]} for row in durations.iter_rows(named=True)],
        **{name: _named(table.head(top) if top else table) for name, table in tables.items()},
        "chain": _named(path.links) if with_chain else None}


def _named(table: pl.DataFrame) -> list[dict[str, Any]]:
    return table.rename({"module_path": "module"}, strict=False).to_dicts()
