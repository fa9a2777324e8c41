"""What the reading commands do: a path and options come in, the text to print goes out."""

from __future__ import annotations

import json
import math
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from distprof.contract import (
    FORMAT,
    MERGED,
    MERGED_COLLECTIVES,
    MERGED_MODULES,
    MERGED_STEPS,
    RANK_JSON,
    STEP_KEYS,
    STEPS,
    SUMMARY_JSON,
    SUMMARY_KEYS,
)
from distprof.errors import DataError, IncompleteError, OutputError, UsageError
from distprof.files import sync, write_json
from distprof.merge import comms_text, stats_text
from distprof.merge.collectives import match_collectives
from distprof.merge.module_rows import module_dicts, module_rows
from distprof.merge.modules import reduce_modules
from distprof.merge.options import MergeOptions
from distprof.merge.page import Page
from distprof.merge.run import Run, open_run
from distprof.merge.summary import problems_of, reduce
from distprof.merge.tables import load, write
from distprof.merge.trace import EVERYTHING, MergedTrace, Progress, merge_traces
from distprof.reporters.report import Report
from distprof.reporters.view import View, select
from distprof.units import size


def merge(path: Path, options: MergeOptions = EVERYTHING, *, force: bool = False, strict: bool = False,
          progress: Progress = lambda _: None) -> str:
    """Writes `merged/` whole or not at all.

    Raises:
        DataError: The run cannot be read.
        OutputError: There is a merge already, or it cannot be written.
        IncompleteError: Something is missing and `strict` is set; what there is was merged.
    """
    run = open_run(path)
    merged = path / MERGED
    if merged.exists() and not force:
        raise OutputError(f"expected no earlier merge, found {merged}", hint="--force replaces it")
    temporary = path / f".{MERGED}.tmp"
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        trace, problems = _write(run, temporary, options, progress)
        if merged.exists():
            shutil.rmtree(merged)
        temporary.rename(merged)
        sync(path)
    except OSError as error:
        raise OutputError(f"cannot write {merged}: {error.strerror or error}", hint="make room or change permissions "
                          "there") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    _check(problems, strict=strict)
    return _told(run, trace, problems)


def _write(run: Run, folder: Path, options: MergeOptions,
           progress: Progress) -> tuple[MergedTrace | None, list[str]]:
    trace = merge_traces(run, folder, options, progress)
    reduction = reduce(run)
    reduction.summary["problems"] += trace.problems if trace is not None else []
    metadata = {"distprof.format": str(FORMAT), "distprof.run_id": run.run_id,
                "distprof.world_size": str(run.world_size), "distprof.mp_size": str(run.mp_size),
                "distprof.dp_size": str(run.dp_size), "distprof.topology": json.dumps(run.topology)}
    write(folder, MERGED_MODULES, reduction.modules, metadata)
    write(folder, MERGED_COLLECTIVES, match_collectives(run), metadata)
    write(folder, MERGED_STEPS, load(run, STEPS), metadata)
    write_json(folder / SUMMARY_JSON, reduction.summary)
    return trace, reduction.summary["problems"]


def _told(run: Run, trace: MergedTrace | None, problems: list[str]) -> str:
    page = Page()
    merged = run.path / MERGED
    if trace is None:
        page.line(f"{merged}: tables of {len(run.ranks)} ranks; no rank recorded a timeline")
    else:
        slices = f"{trace.num_slices} slices" if trace.members else "as they are"
        page.line(f"{merged / trace.path.name}: {trace.num_ranks} of {run.world_size} ranks, {slices}, "
                  f"{size(trace.num_bytes)}")
        _remark(trace, page)
    for problem in problems:
        page.line(f"incomplete: {problem}", style="yellow")
    page.line(f"Next: distprof stats {shlex.quote(str(run.path))}")
    if trace is not None:
        page.line(f"      open {merged / trace.path.name} in https://ui.perfetto.dev")
    return page.text()


def _remark(trace: MergedTrace, page: Page) -> None:
    """What is not in the trace as it was recorded, and why."""
    for remark in trace.remarks:
        page.line(remark)
    for number, what in (
        (trace.num_left_out, "events are left out, as the options say"),
        (trace.num_side, "slices overlap others of their thread and stand in a lane beside it"),
        (trace.num_hanging, "ends of arrows lie in no slice or lack their other end, and are left out"),
    ):
        if number:
            page.line(f"{number} {what}")
    if trace.num_moved:
        page.line(f"{trace.num_moved} events before the common origin were moved onto it", style="yellow")


def _check(problems: list[str], *, strict: bool) -> None:
    if strict and problems:
        raise IncompleteError(f"incomplete: {'; '.join(problems)}", hint="without --strict this exits with 0")


def stats(path: Path, *, as_json: bool = False, strict: bool = False, top: int = 10,
          peak: float | None = None) -> str:
    """Totals, times, modules and ranks of a run; see `merge` for errors.

    Raises:
        UsageError: `peak`, in FLOP/s, is not a positive number.
    """
    if peak is not None and not (math.isfinite(peak) and peak > 0):
        raise UsageError(f"expected a positive number of FLOP/s for --peak, found {peak}")
    summary = _summary(path) if peak is None else reduce(open_run(path), peak=peak).summary
    _check(summary["problems"], strict=strict)
    if as_json:
        return json.dumps(summary, indent=1)
    return stats_text.render(summary, path, Page(), top=top)


def stats_by_module(path: Path, view: View, *, as_json: bool = False, strict: bool = False) -> str:
    """Totals and the tree of modules of a run; see `merge` for errors.

    Raises:
        UsageError: The run does not know what to sort by.
    """
    summary, modules = _summary(path), _modules(path)
    _check(summary["problems"], strict=strict)
    rows = module_rows(modules)
    if as_json:
        shown = [(line.row.group, line.row.path) for line in select(rows, replace(view, collapse=False)).lines]
        totals = {key: summary[key] for key in (*SUMMARY_KEYS[:SUMMARY_KEYS.index("per_gpu")], "per_gpu", "model")}
        return json.dumps({**totals, "modules": module_dicts(modules, rows, shown)}, indent=1)
    return stats_text.render_modules(summary, Report(rows=rows, view=view), path, Page())


def _modules(path: Path) -> pl.DataFrame:
    """From the merge where it is as new as the ranks and has today's columns, else computed."""
    written = path / MERGED / MERGED_MODULES.file
    if _up_to_date(path, written):
        try:
            found = pl.read_parquet(written)
        except (pl.exceptions.PolarsError, OSError) as error:
            raise DataError(f"expected a table in {written}, found: {str(error).splitlines()[0]}",
                            hint=f"distprof merge --force {path}") from error
        if found.columns == MERGED_MODULES.names():
            return found
    return reduce_modules(open_run(path))


def _up_to_date(path: Path, written: Path) -> bool:
    ranks = path.glob(f"rank*/{RANK_JSON}")
    return written.is_file() and all(rank.stat().st_mtime_ns <= written.stat().st_mtime_ns for rank in ranks)


def _summary(path: Path) -> dict[str, Any]:
    """From the merge where it is as new as the ranks, else computed."""
    written = path / MERGED / SUMMARY_JSON
    if _up_to_date(path, written):
        try:
            found = msgspec.json.decode(written.read_bytes(), type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise DataError(f"expected a summary in {written}, found: {error}",
                            hint=f"distprof merge --force {path}") from error
        if set(found) == set(SUMMARY_KEYS) and set(found["step"]) == set(STEP_KEYS):
            return found
    return reduce(open_run(path)).summary


def comms(path: Path, *, as_json: bool = False, strict: bool = False, op: str | None = None,
          step: int | None = None, limit: int = 20) -> str:
    """Collectives of a run as a table and a timeline; see `merge` for errors."""
    run = open_run(path)
    rows = match_collectives(run)
    _check_choice("--op", op, sorted(set(rows["op"])))
    _check_choice("--step", step, sorted(set(rows["step"])))
    for column, value in (("op", op), ("step", step)):
        rows = rows if value is None else rows.filter(pl.col(column) == value)
    _check(problems_of(run), strict=strict)
    if as_json:
        return json.dumps(comms_text.as_json(rows, run), indent=1)
    return comms_text.render(rows, run, Page(), limit=limit)


def _check_choice(flag: str, value: object, known: list[Any]) -> None:
    if value is not None and value not in known:
        raise DataError(f"expected one of {', '.join(map(str, known)) or 'nothing: no collective was recorded'} for "
                        f"{flag}, found {value}")
