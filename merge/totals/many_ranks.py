"""Totals of a run of many ranks, from the files of its hosts, and what a merge says of late ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from distprof.contract.tables import MODULES, STEPS
from distprof.merge.blame.analysis import Analysis
from distprof.merge.blame.of_many import analysis_of_many
from distprof.merge.cost.measured_run import MeasuredRun
from distprof.merge.levels.level_run import LevelRun, level_run
from distprof.merge.levels.representatives import are_few, of_places, tables_tell
from distprof.merge.run.open_run import open_run
from distprof.merge.run.run_model import Run
from distprof.merge.run.tables import Loaded, read_table
from distprof.merge.totals.recorded_tables import RecordedTables, read_tables
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
