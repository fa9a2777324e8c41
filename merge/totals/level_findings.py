"""Findings of `distprof comms` about a run of many ranks, by their summaries."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import polars as pl

from distprof.contract.merged_tables import MERGED_COLLECTIVES
from distprof.contract.paths import RUN_JSON
from distprof.contract.problems import CulpritsOfAllSteps
from distprof.contract.rank_json import RunJson, read
from distprof.contract.tables import STEPS
from distprof.errors import DataError
from distprof.merge.blame.analysis import Analysis
from distprof.merge.blame.hang import hangs_of
from distprof.merge.blame.of_summaries import analysis_of_summaries
from distprof.merge.cost.choice import Choice, chosen, group_key
from distprof.merge.cost.coverage import Coverage
from distprof.merge.cost.kinds import kinds
from distprof.merge.levels.level_run import LevelRun, level_run
from distprof.merge.levels.meeting_rows import meeting_rows
from distprof.merge.run.group_ranks import with_lists
from distprof.merge.run.run_model import Run
from distprof.merge.run.tables import empty, read_table
from distprof.merge.totals.findings import Findings
from distprof.merge.totals.level_totals import noted
from distprof.merge.totals.step_time import step_time


def level_findings(run: Run, choice: Choice) -> Findings:
    """The findings; `collectives` are kept calls, and there are no `rows`.

    Args:
        run: Opened by its summaries.
        choice: Which collectives.

    Raises:
        UsageError: There is no such op, group or step.
    """
    steps = read_table(run, STEPS)
    level = level_run(run.noting(steps.problems), steps.rows)
    return findings_of_level(level, choice)


def findings_of_level(level: LevelRun, choice: Choice, analysis: Analysis | None = None,
                      read: Iterable[int] = ()) -> Findings:
    """The same of what is measured already; `read` are ranks whose tables are read for other things."""
    given = analysis
    if analysis is None and not choice.is_of_some:  # needs more memory than what follows
        analysis = analysis_of_summaries(level)
    rows = chosen(meeting_rows(level), choice)
    if rows.is_empty():
        analysis = given
    elif analysis is not None and not choice.is_of_some and choice.step is not None:
        analysis = replace(analysis, breakdown=analysis.breakdown.filter(pl.col("step") == choice.step),
                           remarks=[CulpritsOfAllSteps(first=analysis.steps[0], last=analysis.steps[-1])])
    again = () if analysis is None or analysis.basis is None else analysis.basis.tables
    run = noted(level.run, {*read, *again, *(rank.number for rank in level.run.without_summary)}, level)
    stuck, problems = hangs_of(_that_may_hang(run))
    steps = [step for step in level.shown if choice.step in (None, step)]
    collectives = with_lists(rows.with_columns(group_key().alias("group_key"))).with_columns(
        ranks=pl.col("group_ranks"))  # those that are kept are of all their ranks
    return Findings(
        run=run.noting(problems), clock=level.clock, rows=empty(MERGED_COLLECTIVES), collectives=collectives,
        steps=steps if not rows.is_empty() else [], kinds=kinds(collectives, len(steps)),
        coverage=coverage_of(level, collectives), hangs=stuck, analysis=analysis, communication=None,
        step_time=step_time(level.steps))


def _that_may_hang(run: Run) -> Run:
    """All ranks, which may have got stuck behind their last pass; but of a job that ended well."""
    try:
        ended_well = all(read(path / RUN_JSON, RunJson).exit_code == 0 for path in run.paths)
    except DataError:
        ended_well = False
    return run.of_tables({rank.number for rank in run.without_summary} if ended_well else None)


def coverage_of(level: LevelRun, collectives: pl.DataFrame) -> Coverage:
    """How many calls all ranks made alike, by the fingerprints of their steps; what is unsure is of kept calls."""
    def count(condition: pl.Expr) -> int:
        return int(collectives.select(condition.fill_null(value=False).sum()).item())

    number, whole = level.measured.num_calls, sum(level.measured.matched.values())
    return Coverage(
        num_collectives=number, num_complete=whole, num_partial=number - whole, num_alone=0, num_unmatched=0,
        matched_by=level.measured.matched, num_mismatches=0,
        num_without_end=count(pl.col("num_without_end") > 0), num_unsure=count(pl.col("unsure")),
        num_spreads=count(pl.col("arrival_spread_ns").is_not_null()), num_disagreeing=count(pl.col("disagrees")))
