"""Totals of a run of many ranks, by their summaries, and by the tables of ranks that stand for others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from distprof.contract.problems import ReadSummaries
from distprof.contract.tables import MODULES, STEPS
from distprof.merge.blame.analysis import Analysis
from distprof.merge.blame.of_summaries import analysis_of_summaries
from distprof.merge.cost.measured_run import MeasuredRun
from distprof.merge.levels.all_tables import are_few, tables_tell
from distprof.merge.levels.level_run import LevelRun, level_run
from distprof.merge.levels.representatives import of_places
from distprof.merge.run.open_run import open_run
from distprof.merge.run.run_model import Run
from distprof.merge.run.tables import Loaded, read_table
from distprof.merge.totals.module_sums import read_modules
from distprof.merge.totals.recorded_tables import RecordedTables, read_tables
from distprof.merge.totals.summary import reduce


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelTotals:
    """A run by its summaries."""

    level: LevelRun
    tables: RecordedTables
    analysis: Analysis
    read: tuple[int, ...]
    """Ranks whose tables were read."""

    def reading(self, ranks: Iterable[int]) -> LevelTotals:
        """The same where tables of some more ranks are read."""
        return replace(self, read=tuple(sorted({*self.read, *ranks})))

    @property
    def measured(self) -> MeasuredRun:
        """The run with the remark on what was read; without rows of its communication."""
        run = noted(self.level.run, self.read, self.level)
        return MeasuredRun(run=run, clock=self.level.clock, collectives=None)

    def summary(self, peak: float | None = None) -> dict[str, Any]:
        """The content of `summary.json`."""
        found = self.measured.noting(self.tables.problems)
        return reduce(found, self.tables, peak=peak, analysis=self.analysis)[0]


def level_totals(run: Run, steps: Loaded | None = None) -> LevelTotals:
    """Reads summaries, and parameters of one rank of each place in the model.

    Args:
        run: Opened by its summaries.
        steps: Its `STEPS`, where they were read already.
    """
    chosen = {rank.number for rank in of_places(run)}
    tables = read_tables(run, steps, holders=run.of_tables(chosen))
    level = level_run(run, tables.steps)
    analysis = analysis_of_summaries(level)
    again = () if analysis.basis is None else analysis.basis.tables
    return LevelTotals(level=level, tables=tables, analysis=analysis, read=tuple(sorted(
        {*chosen, *again, *(rank.number for rank in run.without_summary)})))


def analysis_of_merge(found: MeasuredRun) -> Analysis | None:
    """What summaries tell of communication; None where the tables of all ranks tell more and are looked at.

    Args:
        found: Opened by its folders.
    """
    run = found.run
    opened = open_run(*run.paths, exact=False, only=(STEPS.file, MODULES.file))
    if opened.summaries is None or (opened.without_summary and are_few(run)):
        return None
    analysis = analysis_of_summaries(level_run(opened, read_table(opened, STEPS).rows))
    return None if tables_tell(run, analysis.blind) else analysis


def noted(run: Run, read: Iterable[int], level: LevelRun | None = None) -> Run:
    """The run with what was read of it, and what could not be read."""
    assert run.summaries is not None
    times = None if level is None else (
        len(level.measured.calls), level.measured.num_shown) if level.measured.num_shown else None
    remark = ReadSummaries(num_ranks=len(run.summaries.frames), tables=tuple(sorted(read)), times_of=times,
                           cut=dict(run.summaries.cut))
    return run.noting(run.summaries.problems, [remark])


def level_modules(run: Run) -> pl.DataFrame:
    """Modules reduced over all ranks, and those that some summaries have no room for, over ranks that stand for others.

    The columns of `MERGED_MODULES`; `num_ranks` says over how many.
    """
    known = read_modules(run).rows
    assert run.summaries is not None
    if not run.summaries.cut_modules:
        return known
    chosen = {rank.number for rank in of_places(run)}
    of_some = read_modules(run.of_tables(chosen)).rows
    keys = ["stage", "module_path"]
    # a module that is in the summaries of some ranks only is known by those in which it takes long
    most = known.group_by("stage").agg(pl.col("num_ranks").max().alias("most"))
    whole = known.join(most, on="stage").filter(pl.col("num_ranks") == pl.col("most")).select(known.columns)
    found = of_some.select(keys).join(whole, on=keys, how="left", maintain_order="left").select(known.columns)
    rest = of_some.join(whole, on=keys, how="anti")
    place = of_some.select(keys).with_row_index("place")
    together = pl.concat([found.filter(pl.col("num_ranks").is_not_null()), rest,
                          whole.join(of_some, on=keys, how="anti")])
    ordered = together.join(place, on=keys, how="left").sort("place", nulls_last=True, maintain_order=True)
    return ordered.select(known.columns)


