"""Makes the text of `distprof critical-path`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from distprof.merge.commands.merge import fail_if_incomplete
from distprof.merge.commands.replayable import Replayable, chosen_steps, open_replayable
from distprof.merge.critical.critical_path import CriticalPath, critical_path
from distprof.merge.critical.grouping import by_collective, by_kind, by_module, by_op, by_rank, slack_by_rank
from distprof.merge.run.open_run import NO_SIZES
from distprof.merge.text.critical import CriticalShown, render
from distprof.merge.totals.description import described, problems_of
from distprof.reporters.page import Page

DESCRIBED = ("format", "run_id", "world_size", "ranks", "missing_ranks", "problems", "remarks", "clock")


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalView:
    """What is shown, and how."""

    steps: Sequence[int] = ()
    """Those with a timeline without."""
    top: int | None = None
    """Rows of a table; all without, 15 in text."""
    as_json: bool = False


def critical_paths(path: Path, *more: Path, view: CriticalView, strict: bool = False,
                   sizes: Mapping[str, int] = NO_SIZES) -> str:
    """The longest chains of the steps of a run as text.

    Args:
        path: A run directory, or traces of other programs.
        *more: Further run directories of the same job.
        view: Of which steps, and how.
        strict: Fail where something is missing.
        sizes: Axis of the device mesh -> size, in place of what the run says.

    Raises:
        DataError: The run cannot be read, or its ranks cannot be put into one graph.
        UsageError: There is no such step.
        IncompleteError: Something is missing and `strict` is set.
    """
    found = open_replayable(path, *more, sizes=sizes)
    problems = problems_of(found.run, found.clock)
    fail_if_incomplete(problems, strict=strict)
    chain = critical_path(found.program, found.job, chosen_steps(found, view.steps))
    if view.as_json:
        return json.dumps(_data(found, chain, view), indent=1)
    shown = CriticalShown(run=found.run, clock=found.clock, path=chain, rows=found.program.rows, top=view.top,
                          guessed=found.guessed, remarks=found.program.remarks if not view.steps else (),
                          problems=problems, paths=(path, *more))
    return render(shown, Page())


def _data(found: Replayable, path: CriticalPath, view: CriticalView) -> dict[str, Any]:
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
        "duration_ns": durations["duration_ns"].mean(), "by_kind": by_kind(path),
        "steps": [{**row, "by_rank": each[row["step"]]} for row in durations.iter_rows(named=True)],
        **{name: _named(table.head(view.top) if view.top else table) for name, table in tables.items()},
        "chain": _named(path.links) if view.steps else None}


def _named(table: pl.DataFrame) -> list[dict[str, Any]]:
    return table.rename({"module_path": "module"}, strict=False).to_dicts()
