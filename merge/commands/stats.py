"""Makes the text of `distprof stats`, from an earlier merge where it is up to date."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from distprof.contract.merged_tables import MERGED_MODULES
from distprof.contract.paths import MERGED, RANK_JSON, SUMMARY_JSON
from distprof.contract.problems import Problem, from_json
from distprof.contract.summary import CLOCK_KEYS, STEP_KEYS, SUMMARY_KEYS
from distprof.contract.tables import MODULES
from distprof.errors import DataError, UsageError
from distprof.merge.commands.merge import fail_if_incomplete
from distprof.merge.cost.measured_run import measured_run
from distprof.merge.run.discovery import is_recorded, trace_times
from distprof.merge.run.merged import joined_with
from distprof.merge.run.open_run import NO_SIZES, open_run
from distprof.merge.run.tables import DAMAGE, read_table, read_tables, readable
from distprof.merge.text import stats as stats_text
from distprof.merge.totals.modules import module_dicts, module_rows, reduce_modules
from distprof.merge.totals.summary import reduce
from distprof.reporters.page import Page
from distprof.reporters.tree_report import TreeReport
from distprof.reporters.tree_view import TreeView, select_modules


def stats(path: Path, *more: Path, as_json: bool = False, strict: bool = False, top: int = 10,
          peak: float | None = None, sizes: Mapping[str, int] = NO_SIZES) -> str:
    """Totals, times, modules and ranks of a run, or of the run directories of one job; see `merge` for errors.

    Args:
        path: The run, or a merge.
        *more: Further run directories of the same job.
        as_json: `summary.json` instead of text.
        strict: Fail where something is missing.
        top: Number of modules.
        peak: Peak FLOP/s of each rank's device, instead of the published one.
        sizes: Axis of the device mesh -> size, in place of what the run says.

    Raises:
        UsageError: `peak`, in FLOP/s, is not a positive number.
    """
    if peak is not None and not (math.isfinite(peak) and peak > 0):
        raise UsageError(f"expected a positive number of FLOP/s for --peak, found {peak}")
    paths = (path, *more)
    summary = _summary(paths) if peak is None and not sizes else _computed(paths, peak, sizes)
    fail_if_incomplete(from_json(Problem, summary["problems"]), strict=strict)
    if as_json:
        return json.dumps(summary, indent=1)
    return stats_text.render(summary, paths, Page(), top=top)


def stats_by_module(path: Path, *more: Path, view: TreeView, as_json: bool = False, strict: bool = False,
                    sizes: Mapping[str, int] = NO_SIZES) -> str:
    """Totals and the tree of modules of a run; see `stats` for arguments and errors.

    Raises:
        UsageError: The run does not know what to sort by.
    """
    paths = (path, *more)
    summary = _computed(paths, sizes=sizes) if sizes else _summary(paths)
    _refuse_traces(summary["kind"], path, "modules")
    modules = _reduced(paths, sizes) if sizes else _modules(paths)
    fail_if_incomplete(from_json(Problem, summary["problems"]), strict=strict)
    rows = module_rows(modules)
    if as_json:
        shown = [(line.row.group, line.row.path) for line in select_modules(rows, replace(view, collapse=False)).lines]
        totals = {key: summary[key] for key in (*SUMMARY_KEYS[:SUMMARY_KEYS.index("per_gpu")], "per_gpu", "model")}
        return json.dumps({**totals, "modules": module_dicts(modules, rows, shown)}, indent=1)
    return stats_text.render_modules(summary, TreeReport(rows=rows, view=view), paths, Page())


def _modules(paths: Sequence[Path]) -> pl.DataFrame:
    """From the merge where it is as new as the ranks and has today's columns, else computed."""
    written = _merge_of(paths[0]) / MERGED_MODULES.file
    if _up_to_date(paths, written):
        try:
            found = pl.read_parquet(readable(written), glob=False)
        except DAMAGE as error:
            _fail_if_alone(written, paths[0], "a table", error)
        else:
            if found.columns == MERGED_MODULES.names():
                return found
    return _reduced(paths, NO_SIZES)


def _reduced(paths: Sequence[Path], sizes: Mapping[str, int]) -> pl.DataFrame:
    run = open_run(*paths, sizes=sizes)
    return reduce_modules(run, read_table(run, MODULES).rows)


def _merge_of(path: Path) -> Path:
    """Where the merge of a run is; the path itself where --out has made it."""
    return path if (path / SUMMARY_JSON).is_file() and not is_recorded(path) else path / MERGED


def _up_to_date(paths: Sequence[Path], written: Path) -> bool:
    """True where a merge is of these directories, and newer than all of them; or where it stands alone."""
    if not written.is_file() or (paths[0] == written.parent and len(paths) == 1):
        return written.is_file()
    others = {os.path.realpath(path) for path in paths[1:]} - {os.path.realpath(paths[0])}
    if others != set(map(os.path.realpath, joined_with(written.parent))):
        return False
    return all(time <= written.stat().st_mtime_ns for path in paths for time in _times(path))


def _times(path: Path) -> Iterator[int]:
    """When ranks were recorded or traces written, in ns since the epoch."""
    if not is_recorded(path):
        return trace_times(path)
    return (rank.stat().st_mtime_ns for rank in path.glob(f"rank*/{RANK_JSON}"))


def _summary(paths: Sequence[Path]) -> dict[str, Any]:
    """From the merge where it is as new as the ranks, else computed."""
    written = _merge_of(paths[0]) / SUMMARY_JSON
    if _up_to_date(paths, written):
        try:
            # msgspec takes no escape of a byte that is not UTF-8
            found: dict[str, Any] = json.loads(written.read_bytes())
            keys = ((found, SUMMARY_KEYS), (found.get("step", {}), STEP_KEYS), (found.get("clock", {}), CLOCK_KEYS))
            if all(set(part) == set(known) for part, known in keys):
                from_json(Problem, found["problems"])
                return found
        except (ValueError, RecursionError, TypeError, AttributeError, OSError) as error:
            _fail_if_alone(written, paths[0], "a summary", error)
    return _computed(paths)


def _fail_if_alone(written: Path, path: Path, what: str, error: Exception) -> None:
    """A damaged file of a merge is like none where the ranks are there.

    Raises:
        DataError: They are not.
    """
    if written.parent == path:
        raise DataError(f"expected {what} in {written}, found: {(str(error).splitlines() or ['nothing'])[0]}",
                        hint="merge again") from error


def _computed(paths: Sequence[Path], peak: float | None = None,
              sizes: Mapping[str, int] = NO_SIZES) -> dict[str, Any]:
    found = measured_run(open_run(*paths, sizes=sizes))
    tables = read_tables(found.run)
    return reduce(found.noting(tables.problems), tables, peak=peak)[0]


def _refuse_traces(kind: str, path: Path, what: str) -> None:
    if kind == "traces":
        raise DataError(f"expected {what} that distprof run recorded in {path}, found traces of another program",
                        hint="distprof merge shows them on one timeline")
