"""The longest chain of a step, added up."""

from __future__ import annotations

from typing import Any

import polars as pl

from distprof.errors import DataError
from distprof.merge.critical.grouping import by_collective, by_kind, by_module, by_op, by_rank
from distprof.merge.report.absent import AbsentError
from distprof.merge.report.columns import columns_of
from distprof.merge.report.sources import Sources

MOST_ROWS = 30


def critical_path(sources: Sources) -> dict[str, Any]:
    """Times a step, mean over steps.

    Raises:
        AbsentError: The ranks cannot be put into one graph.
    """
    if sources.many is not None:
        raise AbsentError("the critical path of so many ranks is not part of a report",
                          remedy="see distprof critical-path")
    try:
        found, path = sources.replayable, sources.critical_path
    except DataError as error:
        raise AbsentError("no critical path: it needs steps with collectives whose times and waits are known, on "
                          "clocks that were compared") from error
    durations = path.durations.select(duration_ns=pl.col("end_ns") - pl.col("start_ns"))["duration_ns"]
    tables = {"by_rank": by_rank(path), "by_module": by_module(path), "by_op": by_op(path),
              "by_collective": by_collective(path, found.program.rows)}
    return {"steps": path.steps, "duration_ns": durations.mean(), "by_kind": by_kind(path),
            "ranks_with_guessed_waits": found.guessed,
            **{name: columns_of(table.head(MOST_ROWS).rename({"module_path": "module"}, strict=False))
               for name, table in tables.items()}}
