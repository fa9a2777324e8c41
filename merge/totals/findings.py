"""Collects all that `distprof comms` shows, as data, from whatever a path leads to: a run, traces, a merge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from distprof.contract.collective_ops import text_of
from distprof.contract.merged import MERGED_COLLECTIVES
from distprof.contract.passes import ARRIVALS
from distprof.contract.paths import RUN_JSON
from distprof.contract.problems import CulpritsOfAllSteps
from distprof.contract.rank_json import read
from distprof.contract.run_json import RunJson
from distprof.contract.tables import STEPS
from distprof.errors import DataError, UsageError
from distprof.merge.activity.device.rank_device import NO_DEVICES, DeviceSteps
from distprof.merge.blame.analysis import Analysis, analysis_of
from distprof.merge.blame.hang import Hangs, hangs_of
from distprof.merge.clock.model import Clock
from distprof.merge.cost.choice import Choice, chosen
from distprof.merge.cost.collective_sums import NEEDED, CollectiveKind, Coverage, coverage, kinds, per_collective
from distprof.merge.cost.joined_run import meeting_rows, unlike_calls
from distprof.merge.cost.measured_run import MeasuredRun, differing, measured_run
from distprof.merge.program.job import Job
from distprof.merge.program.run_program import RunProgram, run_program
from distprof.merge.run.merged import is_merge, open_merge, origin_of
from distprof.merge.run.open_run import NO_SIZES, open_run
from distprof.merge.run.run_model import Run
from distprof.merge.run.tables import Loaded, empty, read_table
from distprof.merge.totals.many_ranks import OF_CALLS, ManyRanks, opened
from distprof.merge.totals.step_time import StepTime, step_time, step_time_of
from distprof.units import spans

EVERYTHING = Choice()


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What was found about the chosen collectives."""

    run: Run
    clock: Clock
    rows: pl.DataFrame
    """`MERGED_COLLECTIVES`; empty for many ranks, whose calls are summed over ranks as they are read."""
    collectives: pl.DataFrame
    """See `per_collective`."""
    steps: list[int]
    """Steps that means cover, without the first, in which the profiler warms up; empty if collectives have no steps."""
    kinds: list[CollectiveKind]
    coverage: Coverage
    hangs: Hangs | None
    """What the job got stuck in, if it did."""
    analysis: Analysis | None
    """Analysis of all communication; None if only some ops or groups were chosen, and for a merge alone."""
    communication: dict[str, Any] | None
    """`communication` of the summary, if a merge was read alone."""
    step_time: StepTime | None
    """Step time of the job; None if no step was timed."""
    devices: DeviceSteps = NO_DEVICES
    """What devices did in the counted steps, even if nothing communicated."""

    @property
    def has_rows(self) -> bool:
        """True if there is a row for each rank of each call."""
        return self.collectives.is_empty() or not self.rows.is_empty()

    @property
    def counted_rows(self) -> pl.DataFrame:
        """`rows` of the counted steps."""
        return self.rows.filter(pl.col("step").is_in(self.steps)) if self.steps else self.rows


def findings(measured: MeasuredRun, recorded: Loaded | None, choice: Choice = EVERYTHING,
             program: tuple[RunProgram, Job] | None = None) -> Findings:
    """Matches, measures and explains the collectives of an open run.

    Args:
        measured: The run with its collectives.
        recorded: `STEPS`; None for traces of other programs.
        choice: Which collectives.
        program: What its ranks did, and the graph of it, if they were already made.

    Raises:
        UsageError: There is no such op, group or step.
    """
    run, clock, every = measured.run, measured.clock, measured.collectives
    assert every is not None
    rows = every if recorded is None else _traced(every, recorded.rows)
    rows = chosen(rows, choice if len(rows) else replace(choice, step=None))  # a device may have the step
    analysis, timed, devices = None, None if recorded is None else recorded.rows, NO_DEVICES
    if not (choice.is_of_some or rows.is_empty()):
        run = run.noting(recorded.problems if recorded is not None else ())
        did, job = program or _program(run, clock, every, timed)
        analysis = analysis_of(run, clock, did, job, timed)
        run = run.noting(analysis.problems)
        if timed is None and rows["step"].count():  # otherwise traces mark no steps
            timed = did.windows
        devices = _devices(did, choice)
    elif not choice.is_of_some:  # a device may work although nothing communicates
        did = run_program(run, clock, every, timed)
        devices = _devices(did, choice)
        _check_step(choice, did.devices)
        if timed is None and devices.steps["is_marked"].any():
            timed = did.windows
    found = findings_about(run, clock, rows, choice, analysis, None if timed is None else step_time(timed))
    return replace(found, devices=devices)


def _check_step(choice: Choice, devices: DeviceSteps) -> None:
    """Refuses a step in which neither devices nor communication were active."""
    known = devices.steps["step"].unique().sort().to_list()
    if choice.step is not None and choice.step not in known:
        raise UsageError(f"step {choice.step} has no communication, and no device works in it",
                         hint=f"steps in which one does: {spans(known)}" if known else "leave out --step")


def _devices(did: RunProgram, choice: Choice) -> DeviceSteps:
    """Returns device activity in the chosen step, even one that is not counted otherwise."""
    return did.devices.of_steps(did.traced if choice.step is None else [choice.step])


def _program(run: Run, clock: Clock, rows: pl.DataFrame, steps: pl.DataFrame | None) -> tuple[RunProgram, Job]:
    did = run_program(run, clock, rows, steps)
    return did, did.job()


def findings_about(run: Run, clock: Clock, rows: pl.DataFrame, choice: Choice, analysis: Analysis | None,
                   usual: StepTime | None) -> Findings:
    """Makes the findings about chosen collectives.

    Args:
        run: The run of the collectives.
        clock: Its clock.
        rows: `MERGED_COLLECTIVES`.
        choice: How they were chosen.
        analysis: Analysis of all communication; None if unknown.
        usual: The step time of the job; None if no step was timed.
    """
    stuck, problems = hangs_of(run)
    return found_about(run.noting(problems), clock, rows, per_collective(rows), choice, analysis, usual, stuck)


def found_about(run: Run, clock: Clock, rows: pl.DataFrame, collectives: pl.DataFrame, choice: Choice,
                analysis: Analysis | None, usual: StepTime | None, stuck: Hangs | None) -> Findings:
    """Does the same with `collectives` that are already summed over ranks; `rows` may be empty."""
    steps = collectives["step"].unique().drop_nulls().sort().to_list()
    if analysis is not None and choice.step is None:
        steps = [step for step in steps if step in analysis.steps]
    counted = collectives.select(NEEDED)  # with a million calls, copying the other columns takes much memory
    counted = counted[collectives["step"].is_in(steps).arg_true()] if steps else counted  # copied once, in one piece
    if analysis is not None and choice.step is not None:
        analysis = _of_step(analysis, choice.step)
    return Findings(run=run, clock=clock, rows=rows, collectives=collectives, steps=steps,
                    kinds=kinds(counted, len(steps)), coverage=coverage(collectives), hangs=stuck, analysis=analysis,
                    communication=None, step_time=usual)


def _traced(rows: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Returns the collectives of steps with a timeline, if there are any: other steps are timed less well. Mismatches
    are kept, because what ranks disagree about is wrong in every step."""
    traced = steps.filter(pl.col("pass") != ARRIVALS)["step"].unique()
    is_traced = pl.col("step").is_in(traced.implode())
    return rows.filter(is_traced | pl.col("mismatch").is_not_null()) if rows.select(is_traced.any()).item() else rows


def _of_step(analysis: Analysis, step: int) -> Analysis:
    """Restricts the breakdown to a step; culprits remain those of all steps: one step does not prove a pattern."""
    return replace(analysis, breakdown=analysis.breakdown.filter(pl.col("step") == step),
                   devices=analysis.devices.of_steps([step]),
                   remarks=[CulpritsOfAllSteps(first=analysis.steps[0], last=analysis.steps[-1])])


def findings_of_many(many: ManyRanks, choice: Choice) -> Findings:
    """Makes the findings of a run of many ranks, without `rows`.

    Raises:
        UsageError: There is no such op, group or step.
    """
    analysis = None if choice.is_of_some else many.analysis  # needs more memory than what follows
    usual, unlike, rows = step_time(many.calls.steps), unlike_calls(many.calls), meeting_rows(many.calls)
    if len(unlike):  # otherwise columns would consist of different chunks and be copied later
        rows = pl.concat([rows, unlike.with_columns(
            pl.col("collective") + len(rows), _texts(unlike["ranks"]))], how="diagonal_relaxed", rechunk=True)
    disagreeing = unlike.filter(pl.col("mismatch").is_not_null(), pl.col("matched_by").is_not_null())
    run = many.run.noting(differing(len(disagreeing)))
    collectives = chosen(rows, choice)
    stuck, problems = hangs_of(_that_may_hang(run))
    return found_about(
        run.noting(problems), many.calls.checked_clock, empty(MERGED_COLLECTIVES), collectives, choice,
        None if collectives.is_empty() else analysis, usual, stuck)


def _that_may_hang(run: Run) -> Run:
    """Returns all ranks, which may hang after their last pass; if the job ended well, only those without summary."""
    try:
        ended_well = all(read(path / RUN_JSON, RunJson).exit_code == 0 for path in run.paths)
    except DataError:
        ended_well = False
    return run.of_tables({rank.number for rank in run.in_folders_alone} if ended_well else None)


def _texts(lists: pl.Series) -> pl.Series:
    return pl.Series(lists.name, map(text_of, lists.to_list()), dtype=pl.Categorical)


def findings_of(path: Path, *more: Path, choice: Choice, sizes: Mapping[str, int] = NO_SIZES,
                of_rows: bool = True) -> Findings:
    """Reads a run, and matches, measures and explains its collectives.

    Args:
        path: A run directory, traces of other programs or a merge.
        *more: Further run directories of the same job.
        choice: Which collectives.
        sizes: Axis of the device mesh -> size, in place of what the run says.
        of_rows: Whether a row for each rank of each call is needed; False if the cost per call is enough.

    Raises:
        DataError: It cannot be read.
        UsageError: There is no such op, group or step.
    """
    paths = (path, *more) if more else origin_of(path)
    if is_merge(path) and paths == (path,):
        return _of_merge(path, choice)
    run, many = (open_run(*paths, sizes=sizes), None) if of_rows else opened(
        paths, sizes, only=OF_CALLS, is_judged=not choice.is_of_some)
    if many is not None:
        return findings_of_many(many, choice)
    measured = measured_run(run)
    return findings(measured, read_table(measured.run, STEPS) if measured.run.kind == "distprof" else None, choice)


def _of_merge(path: Path, choice: Choice) -> Findings:
    merge = open_merge(path)
    found = findings_about(merge.run, Clock.of_summary(merge.summary["clock"]), chosen(merge.collectives, choice),
                           choice, None, step_time_of(merge.summary["step"]))
    return found if choice.is_of_some else replace(found, communication=merge.summary["communication"])
