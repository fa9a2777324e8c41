"""Totals and findings of a run of many ranks, from the files of its hosts, and what a merge says of late ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from distprof.contract.collective_ops import text_of
from distprof.contract.merged import MERGED_COLLECTIVES
from distprof.contract.paths import RUN_JSON
from distprof.contract.rank_json import read
from distprof.contract.run_json import RunJson
from distprof.contract.tables import MODULES, STEPS
from distprof.errors import DataError
from distprof.merge.blame.analysis import Analysis
from distprof.merge.blame.hang import hangs_of
from distprof.merge.blame.of_many import analysis_of_many
from distprof.merge.cost.choice import Choice, chosen
from distprof.merge.cost.measured_run import MeasuredRun, differing
from distprof.merge.levels.all_tables import are_few, tables_tell
from distprof.merge.levels.level_run import LevelRun, level_run
from distprof.merge.levels.meeting_rows import meeting_rows, odd_rows
from distprof.merge.levels.representatives import of_places
from distprof.merge.run.group_ranks import with_lists
from distprof.merge.run.open_run import open_run
from distprof.merge.run.run_model import Run
from distprof.merge.run.tables import Loaded, empty, read_table
from distprof.merge.totals.findings import Findings, found_about
from distprof.merge.totals.recorded_tables import RecordedTables, read_tables
from distprof.merge.totals.step_time import step_time
from distprof.merge.totals.summary import reduce


@dataclass(frozen=True, slots=True, kw_only=True)
class ManyRanks:
    """A run of many ranks."""

    level: LevelRun
    tables: RecordedTables
    analysis: Analysis

    def summary(self, peak: float | None = None) -> dict[str, Any]:
        """The content of `summary.json`."""
        run, clock = self.level.run.noting(self.tables.problems), self.level.checked_clock
        found = MeasuredRun(run=run, clock=clock, collectives=None)
        return reduce(found, self.tables, peak=peak, analysis=self.analysis)[0]


def many_ranks(run: Run, steps: Loaded | None = None) -> ManyRanks:
    """Reads the files of hosts, and parameters of one rank of each place in the model.

    Args:
        run: Opened by the files of its hosts.
        steps: Its `STEPS`, where they were read already.
    """
    chosen_ranks = {rank.number for rank in of_places(run)}
    tables = read_tables(run, steps, holders=run.of_tables(chosen_ranks))
    level = level_run(run, tables.steps)
    return ManyRanks(level=level, tables=tables, analysis=analysis_of_many(level))


def analysis_of_merge(found: MeasuredRun) -> Analysis | None:
    """Who delays a run of many ranks; None where the tables of all ranks tell more and are looked at.

    Args:
        found: Opened by its folders.
    """
    run = found.run
    opened = open_run(*run.paths, by_host=True, only=(STEPS.file, MODULES.file))
    if opened.summaries is None or (opened.without_summary and are_few(run)):
        return None
    analysis = analysis_of_many(level_run(opened, read_table(opened, STEPS).rows))
    return None if tables_tell(run, analysis.blind) else analysis


def findings_of_many(level: LevelRun, choice: Choice, analysis: Analysis | None = None) -> Findings:
    """What `distprof comms` shows; there are no `rows`.

    Args:
        level: The run.
        choice: Which collectives.
        analysis: Of all of it, where that was made already.

    Raises:
        UsageError: There is no such op, group or step.
    """
    if analysis is None and not choice.is_of_some:  # needs more memory than what follows
        analysis = analysis_of_many(level)
    odd = odd_rows(level)
    whole = meeting_rows(level)
    rows = pl.concat([whole, odd.with_columns(
        pl.col("collective") + len(whole), group_ranks=_texts(odd)).drop("ranks")], how="diagonal_relaxed")
    disagreeing = odd.filter(pl.col("mismatch").is_not_null(), pl.col("matched_by").is_not_null())
    run = level.run.noting(differing(len(disagreeing)))
    rows = chosen(rows, choice)
    collectives = with_lists(rows).with_columns(ranks=pl.col("group_ranks"))
    stuck, problems = hangs_of(_that_may_hang(run))
    return found_about(
        run.noting(problems), level.checked_clock, empty(MERGED_COLLECTIVES), collectives, choice,
        None if choice.is_of_some or rows.is_empty() else analysis, step_time(level.steps), stuck)


def _that_may_hang(run: Run) -> Run:
    """All ranks, which may have got stuck behind their last pass; but of a job that ended well."""
    try:
        ended_well = all(read(path / RUN_JSON, RunJson).exit_code == 0 for path in run.paths)
    except DataError:
        ended_well = False
    return run.of_tables({rank.number for rank in run.without_summary} if ended_well else None)


def _texts(rows: pl.DataFrame) -> pl.Series:
    return pl.Series("group_ranks", [None if ranks is None else text_of(ranks)
                                     for ranks in rows["group_ranks"].to_list()], dtype=pl.Categorical)
