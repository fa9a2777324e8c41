"""Makes the text of `distprof stats`, from an earlier merge where it is up to date."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distprof.contract.problems import Problem, from_json
from distprof.contract.summary import SUMMARY_KEYS
from distprof.errors import DataError, UsageError
from distprof.merge.commands.incomplete import fail_if_incomplete
from distprof.merge.run.merged import modules_of_merge, summary_of_merge
from distprof.merge.run.open_run import NO_SIZES, open_run
from distprof.merge.run.run_model import Run
from distprof.merge.text import stats as stats_text
from distprof.reporters.page import Page
from distprof.reporters.tree import TreeView, select_modules

if TYPE_CHECKING:
    import polars as pl


def stats(path: Path, *more: Path, as_json: bool = False, strict: bool = False, top: int = 10,
          peak: float | None = None, sizes: Mapping[str, int] = NO_SIZES,
          passes: bool = False) -> str:
    """Totals, times, modules and ranks of a run, or of the run directories of one job; see `merge` for errors.

    Args:
        path: The run, or a merge.
        *more: Further run directories of the same job.
        as_json: `summary.json` instead of text.
        strict: Fail where something is missing.
        top: Number of modules.
        peak: Peak FLOP/s of each rank's device, instead of the published one.
        sizes: Axis of the device mesh -> size, in place of what the run says.
        passes: What steps of each pass take, in place of the rest of the text.

    Raises:
        UsageError: `peak`, in FLOP/s, is not a positive number.
    """
    if peak is not None and not (math.isfinite(peak) and peak > 0):
        raise UsageError(f"--peak must be a positive number of FLOP/s, not {peak}")
    paths = (path, *more)
    summary = (_computed(paths, peak, sizes) if peak is not None or sizes else
               summary_of_merge(paths) or _computed(paths))
    fail_if_incomplete(from_json(Problem, summary["problems"]), strict=strict)
    if as_json:
        return json.dumps(summary, indent=1)
    if passes:
        _refuse_traces(summary["kind"], path, "passes")
        return stats_text.render_passes(summary, paths, Page())
    return stats_text.render(summary, paths, Page(), top=top)


def stats_by_module(path: Path, *more: Path, view: TreeView, as_json: bool = False, strict: bool = False,
                    sizes: Mapping[str, int] = NO_SIZES) -> str:
    """Totals and the tree of modules of a run; see `stats` for arguments and errors.

    Raises:
        UsageError: The run does not know what to sort by.
    """
    from distprof.merge.totals.modules import module_dicts, module_rows
    from distprof.reporters.tree_report import TreeReport

    paths = (path, *more)
    summary, modules = (None, None) if sizes else (summary_of_merge(paths), modules_of_merge(paths))
    run = None if summary is not None and modules is not None else open_run(*paths, sizes=sizes, by_host=True)
    if summary is None:
        assert run is not None
        summary = _summary(run, sizes=sizes)
    _refuse_traces(summary["kind"], path, "modules")
    if modules is None:
        assert run is not None
        modules = _modules(run)
    fail_if_incomplete(from_json(Problem, summary["problems"]), strict=strict)
    rows = module_rows(modules)
    if as_json:
        shown = [(line.row.group, line.row.path) for line in select_modules(rows, replace(view, collapse=False)).lines]
        totals = {key: summary[key] for key in (*SUMMARY_KEYS[:SUMMARY_KEYS.index("per_gpu")], "per_gpu", "model")}
        return json.dumps({**totals, "modules": module_dicts(modules, rows, shown)}, indent=1)
    return stats_text.render_modules(summary, TreeReport(rows=rows, view=view), paths, Page())


def _modules(run: Run) -> pl.DataFrame:
    from distprof.merge.totals.modules import read_modules

    return read_modules(run).rows


def _computed(paths: Sequence[Path], peak: float | None = None,
              sizes: Mapping[str, int] = NO_SIZES) -> dict[str, Any]:
    return _summary(open_run(*paths, sizes=sizes, by_host=True), peak, sizes)


def _summary(run: Run, peak: float | None = None, sizes: Mapping[str, int] = NO_SIZES) -> dict[str, Any]:
    # an earlier merge, where there is one, has all of it
    from distprof.merge.cost.measured_run import measured_run
    from distprof.merge.levels.representatives import tables_tell
    from distprof.merge.totals.many_ranks import many_ranks
    from distprof.merge.totals.recorded_tables import read_tables
    from distprof.merge.totals.summary import reduce

    if run.summaries is not None:
        many = many_ranks(run)
        if not tables_tell(run, many.analysis.blind):
            return many.summary(peak)
        run = open_run(*run.paths, sizes=sizes)
    found = measured_run(run)
    tables = read_tables(found.run)
    return reduce(found.noting(tables.problems), tables, peak=peak)[0]


def _refuse_traces(kind: str, path: Path, what: str) -> None:
    if kind == "traces":
        raise DataError(f"{path} has foreign traces without {what}, which distprof run records",
                        hint="use distprof merge to see them on one timeline")
