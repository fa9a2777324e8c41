"""Finds locations in a merged trace: a rank, a step, or the slice in which the late rank of a finding loses most."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import polars as pl

from distprof.contract.paths import SUMMARY_JSON
from distprof.errors import DataError, UsageError
from distprof.files import MOST_LINES_BYTES, read_small
from distprof.launch.view.merged_trace import MergedTrace, trace_metadata
from distprof.launch.view.place import Place, Wanted, slice_sql, sql_text
from distprof.launch.view.steps import TracedSteps
from distprof.merge.activity.markers import DATA, OPTIMIZER
from distprof.merge.blame.culprits import Cause, Culprit
from distprof.merge.text.communication.culprits import at_step_time, culprit_lines, lines_of_summary
from distprof.merge.totals.step_time import step_time_of
from distprof.terminal import quoted


def place_in(trace: MergedTrace, wanted: Wanted) -> Place:
    """Finds the requested location in a trace.

    Raises:
        DataError: The merge lacks the data to find it, or has no late rank.
        UsageError: There is no such rank, step or finding.
    """
    steps = TracedSteps.of(trace, int(_metadata(trace)["origin_ns"]))
    if wanted.finding is not None:
        return _place_of_finding(trace, steps, wanted.finding)
    if wanted.rank is not None:
        steps.check_rank(wanted.rank)
    ranks = () if wanted.rank is None else (wanted.rank,)
    if wanted.step is None:
        return Place(title=f"rank {wanted.rank}", ranks=ranks, selected_ns=steps.first(wanted.rank))
    span_ns = steps.span(wanted.step, wanted.rank)
    title = f"step {wanted.step}" if wanted.rank is None else f"rank {wanted.rank}, step {wanted.step}"
    shown_ns = steps.with_margin(span_ns) if wanted.rank is None else steps.around_selected(span_ns)
    return Place(title=title, span_ns=shown_ns, ranks=ranks,
                 selected_ns=None if wanted.rank is None else span_ns, marked=((title, slice_sql(title, span_ns)),))


def _metadata(trace: MergedTrace) -> dict[str, Any]:
    if not trace.is_chrome:
        raise DataError(f"--rank, --step and --finding need a Chrome trace, not {trace.file}",
                        hint=f"distprof merge --force {quoted(trace.run)}")
    return trace_metadata(trace.file)


def _place_of_finding(trace: MergedTrace, steps: TracedSteps, number: int) -> Place:
    """Returns where the N-th culprit of `distprof comms` is late."""
    one = _culprit(trace, number)
    if one.rank not in steps.ranks:
        raise DataError(f"rank {one.rank}, of finding {number}, is not in {trace.file}",
                        hint=f"distprof merge --force {quoted(trace.run)}")
    lines = list(culprit_lines([one], steps.ranks))
    found = _longest(steps, one)
    if found is None:
        return Place(title=f"finding {number}: rank {one.rank}", sentences=tuple(lines), ranks=(one.rank,),
                     selected_ns=steps.first(one.rank))
    step, name, start_ns, end_ns = found
    title = f"finding {number}: rank {one.rank}, step {step}"
    shown_ns = steps.around_selected((start_ns, end_ns)) if name is None else steps.with_margin(steps.span(step))
    mark = slice_sql(f"step {step}", (start_ns, end_ns)) if name is None else _named_sql(one.rank, name)
    return Place(title=title, sentences=(*lines, f"Shown: {name or 'all of it'} in step {step} of rank {one.rank}"),
                 span_ns=shown_ns, selected_ns=(start_ns, end_ns), ranks=(one.rank,),
                 marked=((f"finding {number}: {name or 'work'} of rank {one.rank}", mark),))


def _culprit(trace: MergedTrace, number: int) -> Culprit:
    """Returns the N-th culprit in the summary of the merge."""
    file = trace.folder / SUMMARY_JSON
    try:
        summary: dict[str, Any] = json.loads(read_small(file, MOST_LINES_BYTES))
        communication = summary["communication"]
        every = msgspec.convert(communication["culprits"], list[Culprit]) if communication else []
        every = at_step_time(every, step_time_of(summary["step"]))
        ranks, missing = summary["ranks"], summary["missing_ranks"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{file} was written by another version of distprof",
                        hint=f"distprof merge --force {quoted(trace.run)}") from error
    certain = [one for one in every if one.certain]
    if not certain:
        why = next(lines_of_summary(communication, ranks, missing=missing), None) if communication else None
        raise DataError(f"there is no late rank for --finding: {why or 'no communication was recorded'}",
                        hint=f"distprof comms {quoted(trace.run)}")
    if number > len(certain):
        raise UsageError(f"--finding must be from 1 to {len(certain)}, not {number}",
                         hint=f"distprof comms {quoted(trace.run)} lists the late ranks in this order")
    return certain[number - 1]


def _longest(steps: TracedSteps, one: Culprit) -> tuple[int, str | None, int, int] | None:
    """Returns step, name, start and end of the longest slice of a culprit's main cause; without such a slice, of the
    longest step in which it is late, with name None.

    Returns None if the trace has no such step.
    """
    late = steps.rows.filter(pl.col("rank") == one.rank, pl.col("step").is_in(one.late_steps))
    length = pl.col("end_ns") - pl.col("start_ns")
    for cause in one.causes[:1]:
        if (names := _names(cause)) is not None:
            slices = steps.events.filter(
                pl.col("rank") == one.rank, pl.col("category") == "user_annotation", names).collect()
            slices = slices.join(late, on="step", how="semi").sort(length, descending=True)
            if not slices.is_empty():
                step, name, start_ns, end_ns = slices.select("step", "name", "start_ns", "end_ns").row(0)
                return step, name, start_ns, end_ns
    if late.is_empty():
        return None
    step, start_ns, end_ns = late.sort(length, descending=True).select("step", "start_ns", "end_ns").row(0)
    return step, None, start_ns, end_ns


def _names(cause: Cause) -> pl.Expr | None:
    """Returns a filter for the slices that show a cause; None if a cause is not visible as a single slice."""
    name = pl.col("name")
    if cause.kind in ("forward", "recompute") and cause.where is not None:
        return name.str.starts_with(f"{cause.where or 'model'} [")
    if cause.kind == "annotation" and cause.where is not None:
        return name == cause.where
    if cause.kind == "data":
        return name.str.starts_with(DATA)
    if cause.kind == "optimizer":
        return name.str.starts_with(OPTIMIZER[0])
    return None


def _named_sql(rank: int, name: str) -> str:
    """Returns SQL for all slices with a name on a rank."""
    return ("SELECT slice.ts AS ts, slice.dur AS dur, slice.name AS name FROM slice "
            "JOIN thread_track ON slice.track_id = thread_track.id JOIN thread USING (utid) "
            f"JOIN process USING (upid) WHERE slice.name = {sql_text(name)} "
            f"AND (process.name = 'rank {rank}' OR process.name GLOB 'rank {rank} *')")
