"""Writes the files of a merge: trace, tables and summary; and the text that `distprof merge` prints about them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distprof.contract.merged import COPIED, MERGED_COLLECTIVES, MERGED_MODULES, MERGED_STEPS
from distprof.contract.parquet import write_table
from distprof.contract.passes import MEMORY
from distprof.contract.paths import MERGED, SUMMARY_JSON
from distprof.contract.problems import Problem, Remark, SeveralRanksInFile, from_json
from distprof.errors import DataError
from distprof.files import write_json
from distprof.merge.chrome.merged_trace import MergedTrace, merge_traces
from distprof.merge.chrome.options import MergeOptions
from distprof.merge.chrome.rank_events import SENTENCES
from distprof.merge.chrome.rank_surveys import Progress, RankSurvey, RankSurveys
from distprof.merge.clock.model import Clock
from distprof.merge.cost.measured_run import MeasuredRun, measured_run
from distprof.merge.run.run_model import Run
from distprof.merge.run.timelines import timeline_pass
from distprof.merge.text.phrases import clock_line
from distprof.merge.text.problems import sentences, show_problems
from distprof.merge.totals.description import table_metadata, without_tables
from distprof.reporters.page import Page
from distprof.terminal import quoted, quoted_all
from distprof.units import counted, size

if TYPE_CHECKING:
    import polars as pl

    from distprof.merge.totals.recorded_tables import RecordedTables
    from distprof.storage.writing.by_workers import ByWorkers

ROWS = ".rows"
"""Temporary folder for collectives if there are too many to keep in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult:
    """The result of a merge."""

    run: Run
    clock: Clock
    trace: MergedTrace | None
    summary: dict[str, Any]
    """Contents of summary.json."""
    problems: list[Problem]
    late: list[str]
    """Sentences about late ranks; empty if no rank stands out."""


def write_merge(run: Run, reading: RankSurveys, folder: Path, options: MergeOptions, progress: Progress,
                by_workers: ByWorkers | None = None) -> MergeResult:
    """Fills a folder; omits the trace if workers assemble it elsewhere.

    Raises:
        DataError: There are only traces, and none can be read.
        UsageError: The options ask for something that does not exist.
    """
    rows = folder / ROWS
    rows.mkdir()
    try:
        return _written(run, reading, folder, rows, options, progress, by_workers)
    finally:
        shutil.rmtree(rows, ignore_errors=True)


def _written(run: Run, reading: RankSurveys, folder: Path, rows: Path, options: MergeOptions, progress: Progress,
             by_workers: ByWorkers | None) -> MergeResult:
    tables: RecordedTables | None = None
    found = measured_run(run, options.align, collectives=run.kind == "distprof" or bool(options.collectives)
                         or options.critical_path, folder=rows)
    if run.kind == "traces":
        _write_no_rows(run, folder)  # while the first pass runs
    else:
        from distprof.merge.totals.recorded_tables import read_tables

        tables = read_tables(run)
    read = reading.read(lambda done: progress(0.3 * done))
    found = found.noting([one for one in read.problems if one not in found.run.problems])
    found = replace(found, run=found.run.noting(remarks=_of_several(found.run, read.ranks)))
    if options.critical_path:
        found = found.held()
    chain = _chain(found, tables) if options.critical_path else None
    trace = None
    if read.ranks:
        trace = merge_traces(
            found.run, found.clock, read.ranks, reading, folder, options, progress,
            collectives=None if options.collectives is False else found.pieces,
            steps=tables.steps if tables is not None else None, allocations=_allocations(found.run, options),
            chain=chain, by_workers=by_workers)
        found = found.noting(trace.problems)
    elif tables is None:
        reasons = "; ".join(sentences(found.run.problems))
        raise DataError(f"no readable trace in {run.path}: {reasons}")
    if tables is None:
        summary = _write_few_tables(found, folder)
    else:
        found = found.noting(tables.problems)
        summary = _write_tables(found, tables, folder)
    return MergeResult(run=found.run, clock=found.clock, trace=trace, summary=summary,
                       problems=from_json(Problem, summary["problems"]), late=_late(summary))


def _of_several(run: Run, read: Sequence[RankSurvey]) -> Iterator[Remark]:
    """Yields a remark for each trace that contains several ranks, which only reading all of its events shows."""
    for one in read:
        if one.survey.has_several and (remark := SeveralRanksInFile(file=one.trace.name)) not in run.remarks:
            yield remark


def _allocations(run: Run, options: MergeOptions) -> pl.DataFrame | None:
    """Returns the allocations to draw.

    Raises:
        DataError: The timelines have no allocations.
    """
    if options.tensor_bytes is None:
        return None
    import polars as pl

    from distprof.merge.memory.run_memory import run_memory

    chosen = [rank for rank in run.ranks if options.ranks is None or rank.number in options.ranks]
    if run.kind != "traces":
        chosen = [rank for rank in chosen if timeline_pass(rank) == MEMORY]
        if not chosen:
            raise DataError(f"--tensors needs timelines with allocations, and those in {run.path} are from the trace "
                            "pass", hint="record them with --steps trace=0,memory=2")
    return run_memory(replace(run, ranks=chosen)).rows.filter(pl.col("size_bytes") >= options.tensor_bytes)


def _chain(found: MeasuredRun, tables: RecordedTables | None) -> pl.DataFrame:
    """Returns the critical paths of all steps with a timeline: across ranks, or through devices if ranks never meet."""
    from distprof.merge.chrome.drawing.chains import links_of_devices, links_of_ranks
    from distprof.merge.critical.critical_path import critical_path
    from distprof.merge.critical.device.run_paths import device_paths
    from distprof.merge.critical.replayable import chosen_steps, opened_run

    opened = opened_run(found, tables.steps if tables is not None else None)
    if opened.is_alone and (paths := device_paths(opened.run, opened.clock, opened.program)) is not None:
        return links_of_devices(paths.path.links)
    read = opened.replayable()
    return links_of_ranks(critical_path(read.program, read.job, chosen_steps(read, ())).on_common_clock,
                          read.program.rows)


def _write_no_rows(run: Run, folder: Path) -> None:
    for table in (MERGED_MODULES, MERGED_COLLECTIVES, MERGED_STEPS):
        write_table(folder, table, [], tags={}, metadata=table_metadata(run))


def _write_few_tables(found: MeasuredRun, folder: Path) -> dict[str, Any]:
    """Writes the summary of traces of other programs, and their collectives if requested."""
    summary = without_tables(found.run, found.clock)
    if found.collectives is not None:
        from distprof.merge.run.tables import write
        from distprof.merge.totals.summary import communication

        summary["communication"], _ = communication(found, None)  # the second value is only for tables
        write(folder, MERGED_COLLECTIVES, found.collectives, table_metadata(found.run))
    write_json(folder / SUMMARY_JSON, summary)
    return summary


def _write_tables(found: MeasuredRun, tables: RecordedTables, folder: Path) -> dict[str, Any]:
    from distprof.merge.clock.model import on_common_clock
    from distprof.merge.run.tables import read_table, write
    from distprof.merge.totals.many_ranks import analysis_of_merge
    from distprof.merge.totals.summary import reduce

    analysis = analysis_of_merge(found)
    (summary, modules), metadata = reduce(found, tables, analysis=analysis), table_metadata(found.run)
    write(folder, MERGED_MODULES, modules, metadata)
    if found.pieces is not None:
        write(folder, MERGED_COLLECTIVES, found.pieces, metadata)
    write(folder, MERGED_STEPS, on_common_clock(found.clock, tables.steps, ("start_ns", "end_ns")), metadata)
    for table in COPIED:
        if any(rank.has(table) for rank in found.run.ranks):
            write(folder, table, read_table(found.run, table).rows, metadata)
    write_json(folder / SUMMARY_JSON, summary)
    return summary


def _late(summary: dict[str, Any]) -> list[str]:
    found = summary["communication"]
    if found is None or not any(one["certain"] for one in found["culprits"]):
        return []
    from distprof.merge.text.communication.culprits import lines_of_summary
    from distprof.merge.totals.step_time import step_time_of

    return list(lines_of_summary(found, summary["ranks"], missing=summary["missing_ranks"],
                                 usual=step_time_of(summary["step"])))


def answer_text(written: MergeResult) -> str:
    """Returns the ten-line summary."""
    from distprof.merge.text.answer import answer  # imports polars

    page = Page()
    for line in answer(written.summary):
        page.line(line)
    return page.text()


def summary_text(written: MergeResult, merged: Path) -> str:
    """Returns what was written, and what is missing in it."""
    page, run, trace = Page(), written.run, written.trace
    if trace is None:
        page.line(f"{merged}: tables of {counted(len(run.ranks), 'rank')}; no rank has a readable timeline")
    else:
        slices = counted(trace.num_slices, "slice") if trace.counts else "unchanged"
        page.line(f"{merged / trace.path.name}: {trace.num_ranks} of {counted(run.world_size, 'rank')}, {slices}, "
                  f"{size(trace.num_bytes)}")
        _remark(trace, page)
    page.line(clock_line(written.clock.to_json()))
    for line in written.late:
        page.line(line)
    show_problems(run.remarks, written.problems, page)
    following = [f"distprof stats {quoted_all(run.paths)}"] if run.kind == "distprof" else []
    following += [f"distprof view {quoted(_viewed(run, merged))}"] if trace is not None else []
    for index, step in enumerate(following):
        page.line(f"{'     ' if index else 'Next:'} {step}")
    return page.text()


def _viewed(run: Run, merged: Path) -> Path:
    """Returns the argument for `distprof view`: the run, or a merge in another place."""
    return next((path for path in run.paths if (path / MERGED).resolve() == merged), merged)


def _remark(trace: MergedTrace, page: Page) -> None:
    """Adds how the trace differs from what was recorded, and why."""
    for remark in trace.remarks:
        page.line(remark)
    for count, (noun, what) in SENTENCES.items():
        if number := trace.total(count):
            page.line(f"{counted(number, noun)} {what}")
