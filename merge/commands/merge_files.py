"""The files of a merge: a run comes in, trace, tables and summary go out, and what to tell of them."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distprof.contract.merged_tables import MERGED_COLLECTIVES, MERGED_MODULES, MERGED_STEPS
from distprof.contract.parquet import write_table
from distprof.contract.paths import SUMMARY_JSON
from distprof.contract.problems import Problem
from distprof.contract.tables import STEPS
from distprof.errors import DataError
from distprof.files import write_json
from distprof.merge.chrome.first_pass import FirstPass, Progress
from distprof.merge.chrome.merged_trace import TOLD, MergedTrace, merge_traces
from distprof.merge.chrome.options import MergeOptions
from distprof.merge.clock.choose import aligned
from distprof.merge.run.run_model import Run, clock_of
from distprof.merge.text.clock import clock_line
from distprof.merge.text.problems import sentences, show_problems
from distprof.merge.totals.description import problems_of, table_metadata, without_tables
from distprof.reporters.page import Page
from distprof.units import size

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A merge."""

    run: Run
    trace: MergedTrace | None
    problems: list[Problem]
    late: list[str]
    """Who made the others wait, in sentences; nothing where nobody stands out."""


def write_merge(run: Run, reading: FirstPass, folder: Path, options: MergeOptions, progress: Progress) -> Written:
    """Fills a folder.

    Raises:
        DataError: Traces are all there is, and none can be read.
        UsageError: The options ask for what is not there.
    """
    run = aligned(run, options.align)
    if run.kind == "traces":
        _write_no_rows(run, folder)  # while the first pass runs
    collectives = _collectives(run, options)
    trace = merge_traces(run, reading, folder, options, progress,
                         None if options.collectives is False else collectives)
    if trace is None and run.kind == "traces":
        reasons = "; ".join(sentences(run.problems))
        raise DataError(f"expected a trace that can be read in {run.path}, found none: {reasons}")
    late = (_write_few_tables if run.kind == "traces" else _write_tables)(run, folder, collectives)
    return Written(run=run, trace=trace, problems=problems_of(run), late=late)


def _collectives(run: Run, options: MergeOptions) -> pl.DataFrame | None:
    """Of a run of ours. Traces of other programs are read once more for them, which takes as long as to merge."""
    if run.kind == "traces" and not options.collectives:
        return None
    from distprof.merge.cost.collectives import collectives_of  # with polars, which takes a while to import

    return collectives_of(run)


def _write_no_rows(run: Run, folder: Path) -> None:
    for table in (MERGED_MODULES, MERGED_COLLECTIVES, MERGED_STEPS):
        write_table(folder, table, [], tags={}, metadata=table_metadata(run))


def _write_few_tables(run: Run, folder: Path, collectives: pl.DataFrame | None) -> list[str]:
    """What traces of other programs tell."""
    summary = without_tables(run)
    if collectives is not None:
        from distprof.merge.run.tables import write
        from distprof.merge.totals.communication import communication

        summary["communication"] = communication(run, collectives)
        write(folder, MERGED_COLLECTIVES, collectives, table_metadata(run))
    write_json(folder / SUMMARY_JSON, summary)
    return _late(summary)


def _write_tables(run: Run, folder: Path, collectives: pl.DataFrame | None) -> list[str]:
    from distprof.merge.run.tables import load, on_common_clock, write
    from distprof.merge.totals.summary import reduce

    reduction = reduce(run, collectives=collectives)  # last: what reading found damaged is in it
    write(folder, MERGED_MODULES, reduction.modules, table_metadata(run))
    if collectives is not None:
        write(folder, MERGED_COLLECTIVES, collectives, table_metadata(run))
    write(folder, MERGED_STEPS, on_common_clock(run, load(run, STEPS), ("start_ns", "end_ns")), table_metadata(run))
    write_json(folder / SUMMARY_JSON, reduction.summary)
    return _late(reduction.summary)


def _late(summary: dict[str, Any]) -> list[str]:
    found = summary["communication"]
    if found is None or not any(one["certain"] for one in found["culprits"]):
        return []
    from distprof.merge.text.culprits import lines_of_summary

    return list(lines_of_summary(found, summary["ranks"]))


def told(written: Written, merged: Path) -> str:
    """What was written, and what is not in it."""
    page, run, trace = Page(), written.run, written.trace
    if trace is None:
        page.line(f"{merged}: tables of {len(run.ranks)} ranks; no rank has a timeline that can be read")
    else:
        slices = f"{trace.num_slices} slices" if trace.members else "as they are"
        page.line(f"{merged / trace.path.name}: {trace.num_ranks} of {run.world_size} ranks, {slices}, "
                  f"{size(trace.num_bytes)}")
        _remark(trace, page)
    page.line(clock_line(clock_of(run)))
    for line in written.late:
        page.line(line)
    show_problems(run.remarks, written.problems, page)
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
