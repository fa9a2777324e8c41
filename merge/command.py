"""What the reading commands do: a path and options come in, the text to print goes out."""

from __future__ import annotations

import json
import math
import shlex
import shutil
from collections.abc import Sequence
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
)
from distprof.errors import DataError, IncompleteError, OutputError, UsageError
from distprof.files import sync, write_json
from distprof.merge import comms_text, stats_text
from distprof.merge.alignment import aligned
from distprof.merge.archives import unpack
from distprof.merge.clock_text import clock_line
from distprof.merge.collectives import match_collectives
from distprof.merge.discovery import is_recorded, trace_times
from distprof.merge.module_rows import module_dicts, module_rows
from distprof.merge.modules import reduce_modules
from distprof.merge.options import MergeOptions
from distprof.merge.page import Page
from distprof.merge.ranking import Naming
from distprof.merge.run import Run, clock_of, open_run
from distprof.merge.summary import problems_of, reduce
from distprof.merge.tables import load, on_common_clock, write
from distprof.merge.trace import EVERYTHING, TOLD, MergedTrace, Progress, merge_traces
from distprof.reporters.report import Report
from distprof.reporters.view import View, select
from distprof.units import size


def merge(*paths: Path, options: MergeOptions = EVERYTHING, out: Path | None = None, naming: Naming | None = None,
          force: bool = False, strict: bool = False, progress: Progress = lambda _: None) -> str:
    """Writes the merged trace and tables whole or not at all.

    Args:
        *paths: A run directory, or traces of other programs: folders, files, archives.
        options: What goes in and how.
        out: Where to write; `merged/` in the run directory or folder where it is not given.
        naming: How to tell the rank of a trace, where neither the trace nor its name does.
        force: Replace an earlier merge.
        strict: Fail where something is missing.
        progress: Is told how much of the work is done, from 0 to 1.

    Raises:
        DataError: The run cannot be read.
        OutputError: There is a merge already, or it cannot be written.
        UsageError: It takes `out`, or `naming` makes no sense.
        IncompleteError: Something is missing and `strict` is set; what there is was merged.
    """
    run = aligned(open_run(*paths, naming=naming), options.align)
    merged = _free(out if out is not None else _beside(paths), force=force)
    temporary = merged.with_name(f".{merged.name}.tmp")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        trace = _write(run, temporary, options, progress)
        if merged.exists():
            shutil.rmtree(merged)
        temporary.rename(merged)
        sync(merged.parent)
    except OSError as error:
        raise OutputError(f"cannot write {merged}: {error.strerror or error}", hint="make room or change permissions "
                          "there, or write elsewhere with --out DIR") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    problems = problems_of(run)
    _check(problems, strict=strict)
    return _told(run, merged, trace, problems)


def _beside(paths: Sequence[Path]) -> Path:
    if len(paths) == 1 and paths[0].is_dir():
        return paths[0] / MERGED
    raise UsageError("expected --out DIR, found none: only a folder has a place for its merge", hint="add --out merged")


def _free(merged: Path, *, force: bool) -> Path:
    """The path, if a merge may be written there. Nothing but a merge is ever replaced."""
    merged = merged.resolve() if merged.name in ("", "..") else merged
    if merged.is_dir() and not any(merged.iterdir()):
        return merged
    if merged.exists() and not (merged.is_dir() and (merged / SUMMARY_JSON).is_file()):
        raise OutputError(f"expected a new or empty folder or an earlier merge, found other files at {merged}",
                          hint="choose another --out")
    if merged.exists() and not force:
        raise OutputError(f"expected no earlier merge, found {merged}", hint="--force replaces it")
    return merged


def _write(run: Run, folder: Path, options: MergeOptions, progress: Progress) -> MergedTrace | None:
    trace = _write_trace(run, folder, options, progress)
    if trace is None and run.kind == "traces":
        raise DataError(f"expected a trace that can be read in {run.path}, found none: {'; '.join(run.problems)}")
    collectives = match_collectives(run)
    reduction = reduce(run)  # last: what reading found damaged is in it
    metadata = {"distprof.format": str(FORMAT), "distprof.run_id": run.run_id,
                "distprof.world_size": str(run.world_size), "distprof.mp_size": str(run.mp_size),
                "distprof.dp_size": str(run.dp_size), "distprof.topology": json.dumps(run.topology)}
    write(folder, MERGED_MODULES, reduction.modules, metadata)
    write(folder, MERGED_COLLECTIVES, collectives, metadata)
    write(folder, MERGED_STEPS, on_common_clock(run, load(run, STEPS), ("start_ns", "end_ns")), metadata)
    write_json(folder / SUMMARY_JSON, reduction.summary)
    return trace


def _write_trace(run: Run, folder: Path, options: MergeOptions, progress: Progress) -> MergedTrace | None:
    """Members of compressed archives are unpacked for it: each would be read through all that come before it."""
    unpacked = folder / "unpacked"
    unpacked.mkdir()
    try:
        files = unpack([rank.trace for rank in run.ranks if rank.trace is not None], unpacked)
        ranks = [rank if rank.trace is None else replace(rank, trace=files.get(rank.trace, rank.trace))
                 for rank in run.ranks]
        return merge_traces(replace(run, ranks=ranks), folder, options, progress)
    finally:
        shutil.rmtree(unpacked)


def _told(run: Run, merged: Path, trace: MergedTrace | None, problems: list[str]) -> str:
    page = Page()
    if trace is None:
        page.line(f"{merged}: tables of {len(run.ranks)} ranks; no rank has a timeline that can be read")
    else:
        slices = f"{trace.num_slices} slices" if trace.members else "as they are"
        page.line(f"{merged / trace.path.name}: {trace.num_ranks} of {run.world_size} ranks, {slices}, "
                  f"{size(trace.num_bytes)}")
        _remark(trace, page)
    page.line(clock_line(clock_of(run)))
    for remark in run.remarks:
        page.line(f"note: {remark}", style="yellow")
    for problem in problems:
        page.line(f"incomplete: {problem}", style="yellow")
    following = [f"distprof stats {shlex.quote(str(run.path))}"] if run.kind == "distprof" else []
    following += [f"open {merged / trace.path.name} in https://ui.perfetto.dev"] if trace is not None else []
    for index, step in enumerate(following):
        page.line(f"{'     ' if index else 'Next:'} {step}")
    return page.text()


def _remark(trace: MergedTrace, page: Page) -> None:
    """What is not in the trace as it was recorded, and why."""
    for remark in trace.remarks:
        page.line(remark)
    for count, what in TOLD.items():
        if number := trace.total(count):
            page.line(f"{number} {what}")


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
    summary = _summary(path)
    _refuse_traces(summary["kind"], path, "modules")
    modules = _modules(path)
    _check(summary["problems"], strict=strict)
    rows = module_rows(modules)
    if as_json:
        shown = [(line.row.group, line.row.path) for line in select(rows, replace(view, collapse=False)).lines]
        totals = {key: summary[key] for key in (*SUMMARY_KEYS[:SUMMARY_KEYS.index("per_gpu")], "per_gpu", "model")}
        return json.dumps({**totals, "modules": module_dicts(modules, rows, shown)}, indent=1)
    return stats_text.render_modules(summary, Report(rows=rows, view=view), path, Page())


def _modules(path: Path) -> pl.DataFrame:
    """From the merge where it is as new as the ranks and has today's columns, else computed."""
    written = _merge_of(path) / MERGED_MODULES.file
    if _up_to_date(path, written):
        try:
            found = pl.read_parquet(written)
        except (pl.exceptions.PolarsError, OSError) as error:
            raise DataError(f"expected a table in {written}, found: {str(error).splitlines()[0]}",
                            hint=f"distprof merge --force {path}") from error
        if found.columns == MERGED_MODULES.names():
            return found
    return reduce_modules(open_run(path))


def _merge_of(path: Path) -> Path:
    """Where the merge of a run is; the path itself where --out has made it."""
    return path if (path / SUMMARY_JSON).is_file() and not is_recorded(path) else path / MERGED


def _up_to_date(path: Path, written: Path) -> bool:
    if not written.is_file() or written.parent == path:
        return written.is_file()
    ranks = (rank.stat().st_mtime_ns for rank in path.glob(f"rank*/{RANK_JSON}"))
    return all(time <= written.stat().st_mtime_ns for time in (ranks if is_recorded(path) else trace_times(path)))


def _summary(path: Path) -> dict[str, Any]:
    """From the merge where it is as new as the ranks, else computed."""
    written = _merge_of(path) / SUMMARY_JSON
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
    _refuse_traces(run.kind, path, "collectives")
    rows = match_collectives(run)
    _check_choice("--op", op, sorted(set(rows["op"])))
    _check_choice("--step", step, sorted(set(rows["step"])))
    for column, value in (("op", op), ("step", step)):
        rows = rows if value is None else rows.filter(pl.col(column) == value)
    _check(problems_of(run), strict=strict)
    if as_json:
        return json.dumps(comms_text.as_json(rows, run), indent=1)
    return comms_text.render(rows, run, Page(), limit=limit)


def _refuse_traces(kind: str, path: Path, what: str) -> None:
    if kind == "traces":
        raise DataError(f"expected {what} that distprof run recorded in {path}, found traces of another program",
                        hint="distprof merge shows them on one timeline")


def _check_choice(flag: str, value: object, known: list[Any]) -> None:
    if value is not None and value not in known:
        raise DataError(f"expected one of {', '.join(map(str, known)) or 'nothing: no collective was recorded'} for "
                        f"{flag}, found {value}")
