"""Where the host spends its time: lines of the script, lines or operators that wait, and what torch.compile did."""

from __future__ import annotations

from typing import Any

import polars as pl

from distprof.errors import DataError
from distprof.merge.report.absent import AbsentError
from distprof.merge.report.columns import Columns, columns_of
from distprof.merge.report.sampling import Sample
from distprof.merge.report.sources import Sources
from distprof.merge.waits.compilations import compilation_totals, grouped_compilations
from distprof.merge.waits.run_waits import grouped
from distprof.merge.waits.script_lines import script_lines as lines_of
from distprof.units import counted

MOST_ROWS = 50
MOST_LINES = 20


def script_lines(sources: Sources) -> Columns:
    """Lines of the script with the most time per step.

    Raises:
        AbsentError: No samples were taken.
    """
    found = lines_of(sources.in_detail)
    if found.is_empty():
        raise AbsentError("no lines of the script were sampled", remedy="record them with --steps trace=6")
    return columns_of(found.head(MOST_LINES))


def waits(sources: Sources, sample: Sample) -> dict[str, Any]:
    """Rows by line and operator that blocked, most time first.

    Raises:
        AbsentError: Nothing shows waits.
    """
    try:
        found = sources.waits
    except DataError as error:
        raise AbsentError("host waits were not recorded",
                          remedy="record them, with lines of the script, using --steps sync=2") from error
    steps = found.steps.filter(pl.col("rank").is_in(found.ranks))
    table = grouped(found.rows, ("line", "op"), sort="blocked_ns", total_ns=int(steps["duration_ns"].sum()))
    blocking = table.filter(pl.col("blocked_ns") > 0)
    if len(blocking) > MOST_ROWS:
        sample.left_out.append(f"{counted(MOST_ROWS, 'row')} of {len(blocking)} host waits are shown")
    compiled = grouped_compilations(found.compilations)
    return {"source": found.source, "steps": sorted({*steps["step"].to_list(), *found.rows["step"].to_list()}),
            "total_ns": int(steps["duration_ns"].sum()) if len(steps) else None,
            "rows": columns_of(blocking.head(MOST_ROWS).rename({"module_path": "module"})),
            "compilations": {"totals": compilation_totals(found.compilations),
                             "rows": columns_of(compiled.head(MOST_ROWS).rename({"module_path": "module"}))}}
