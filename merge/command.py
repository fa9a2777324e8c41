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
    CLOCK_KEYS,
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
    TRACE_JSON,
)
from distprof.errors import DataError, IncompleteError, OutputError, UsageError
from distprof.files import sync, write_json
from distprof.merge import comms_text, stats_text
from distprof.merge.alignment import Align, aligned
from distprof.merge.clock_text import clock_line
from distprof.merge.collectives import match_collectives
from distprof.merge.module_rows import module_dicts, module_rows
from distprof.merge.modules import reduce_modules
from distprof.merge.page import Page
from distprof.merge.run import Run, open_run
from distprof.merge.summary import problems_of, reduce
from distprof.merge.tables import load, on_common_clock, write
from distprof.merge.trace import MergedTrace, merge_traces
from distprof.reporters.report import Report
from distprof.reporters.view import View, select
from distprof.units import size


def merge(path: Path, *, force: bool = False, strict: bool = False, align: Align = "auto") -> str:
    """Writes `merged/` whole or not at all.

    Args:
        path: The run directory.
        force: Replaces an earlier merge.
        strict: Fails where something is missing.
        align: How the ranks are brought to one clock.

    Raises:
        DataError: The run cannot be read.
        OutputError: There is a merge already, or it cannot be written.
        IncompleteError: Something is missing and `strict` is set; what there is was merged.
    """
    run = aligned(open_run(path), align)
    merged = path / MERGED
    if merged.exists() and not force:
        raise OutputError(f"expected no earlier merge, found {merged}", hint="--force replaces it")
    temporary = path / f".{MERGED}.tmp"
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        trace, summary = _write(run, temporary)
        if merged.exists():
            shutil.rmtree(merged)
        temporary.rename(merged)
        sync(path)
    except OSError as error:
        raise OutputError(f"cannot write {merged}: {error.strerror or error}", hint="make room or change permissions "
                          "there") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    _check(summary["problems"], strict=strict)
    return _told(run, trace, summary)


def _write(run: Run, folder: Path) -> tuple[MergedTrace | None, dict[str, Any]]:
    trace = merge_traces(run, folder / TRACE_JSON)
    reduction = reduce(run)
    metadata = {"distprof.format": str(FORMAT), "distprof.run_id": run.run_id,
                "distprof.world_size": str(run.world_size), "distprof.mp_size": str(run.mp_size),
                "distprof.dp_size": str(run.dp_size), "distprof.topology": json.dumps(run.topology)}
    write(folder, MERGED_MODULES, reduction.modules, metadata)
    write(folder, MERGED_COLLECTIVES, match_collectives(run), metadata)
    write(folder, MERGED_STEPS, on_common_clock(run, load(run, STEPS), ("start_ns", "end_ns")), metadata)
    write_json(folder / SUMMARY_JSON, reduction.summary)
    return trace, reduction.summary


def _told(run: Run, trace: MergedTrace | None, summary: dict[str, Any]) -> str:
    page = Page()
    merged = run.path / MERGED
    if trace is None:
        page.line(f"{merged}: tables of {len(run.ranks)} ranks; no rank recorded a timeline")
    else:
        page.line(f"{merged / TRACE_JSON}: {len(trace.members)} of {run.world_size} ranks, {trace.num_slices} slices, "
                  f"{size(trace.num_bytes)}")
    page.line(clock_line(summary["clock"]))
    if trace is not None and trace.num_moved:
        page.line(f"{trace.num_moved} events before the common origin were moved onto it", style="yellow")
    for problem in summary["problems"]:
        page.line(f"incomplete: {problem}", style="yellow")
    page.line(f"Next: distprof stats {shlex.quote(str(run.path))}")
    if trace is not None:
        page.line(f"      open {merged / TRACE_JSON} in https://ui.perfetto.dev")
    return page.text()


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
    summary = _summary(path) if peak is None else reduce(aligned(open_run(path)), peak=peak).summary
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
        keys = ((found, SUMMARY_KEYS), (found.get("step", {}), STEP_KEYS), (found.get("clock", {}), CLOCK_KEYS))
        if all(set(part) == set(known) for part, known in keys):
            return found
    return reduce(aligned(open_run(path))).summary


def comms(path: Path, *, as_json: bool = False, strict: bool = False, op: str | None = None,
          step: int | None = None, limit: int = 20) -> str:
    """Collectives of a run as a table and a timeline; see `merge` for errors."""
    run = aligned(open_run(path))
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
