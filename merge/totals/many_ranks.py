"""A run of many ranks, opened by the files of its hosts: its calls, its totals, and the ranks that delay it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from distprof.contract.tables import MODULES, STEPS
from distprof.merge.blame.analysis import Analysis
from distprof.merge.blame.of_many import analysis_of_many
from distprof.merge.cost.joined_run import JoinedRun, joined_run
from distprof.merge.cost.measured_run import MeasuredRun
from distprof.merge.run.open_run import ALL_TABLES, NO_SIZES, open_run
from distprof.merge.run.representatives import are_few, of_places, tables_tell
from distprof.merge.run.run_model import Run
from distprof.merge.run.tables import read_table
from distprof.merge.totals.recorded_tables import RecordedTables, read_tables
from distprof.merge.totals.summary import reduce

OF_CALLS = (STEPS.file, MODULES.file)
"""Tables that are read with calls to find who delays a job."""
OF_STEPS = ("rank", "step", "pass", "start_ns", "end_ns", "duration_ns", "device_ns", "before_forward_ns", "fwd_ns",
            "bwd_ns", "optimizer_ns", "samples", "elements", "forward_calls", "cpu_ns", "run_queue_ns")
"""Columns of `STEPS` that are needed for that."""


@dataclass(frozen=True, kw_only=True)
class ManyRanks:
    """A run of many ranks; each part of it is read when it is first requested."""

    run: Run
    has_totals: bool = True
    """False if it was opened without the tables that totals are made from."""

    @cached_property
    def tables(self) -> RecordedTables:
        """What totals are made from; parameters come from one rank for each place in the model."""
        return read_tables(self.run, holders=self.run.of_tables({rank.number for rank in of_places(self.run)}))

    @cached_property
    def calls(self) -> JoinedRun:
        """Calls of the run. Tables are read before them, as that takes more memory temporarily."""
        steps = self.tables.steps if self.has_totals else read_table(self.run, STEPS.only(*OF_STEPS)).rows
        return joined_run(self.run, steps)

    @cached_property
    def analysis(self) -> Analysis:
        """Analysis of all communication."""
        return analysis_of_many(self.calls)

    def summary(self, peak: float | None = None) -> dict[str, Any]:
        """Returns the content of `summary.json`."""
        run, clock = self.run.noting(self.tables.problems), self.calls.checked_clock
        found = MeasuredRun(run=run, clock=clock, collectives=None)
        return reduce(found, self.tables, peak=peak, analysis=self.analysis)[0]


def opened(paths: Sequence[Path], sizes: Mapping[str, int] = NO_SIZES, *, only: Collection[str] = ALL_TABLES,
           is_judged: bool = True) -> tuple[Run, ManyRanks | None]:
    """Opens a run by the files of its hosts, if there are many ranks and these files show what waiting cost.

    Args:
        paths: The run directories of one job, or traces of other programs.
        sizes: Axis of the device mesh -> size, in place of what the run says.
        only: Tables of all ranks that are wanted.
        is_judged: Whether the caller wants to know who delays the job.

    Returns:
        The run; and what is read of many ranks together, None if each rank is read separately.

    Raises:
        DataError: It cannot be read.
        UsageError: The product of the sizes is not the world size.
    """
    run = open_run(*paths, sizes=sizes, by_host=True, only=only)
    if not run.by_host:
        return run, None
    found = ManyRanks(run=run, has_totals=len(only) == len(ALL_TABLES))
    if is_judged and tables_tell(run, found.analysis.blind):
        return open_run(*paths, sizes=sizes), None
    return run, found


def analysis_of_merge(found: MeasuredRun) -> Analysis | None:
    """Finds who delays a run of many ranks; None if the tables of all ranks show more and will be analysed.

    Args:
        found: The run, opened by its folders.
    """
    run = found.run
    by_host = open_run(*run.paths, by_host=True, only=OF_CALLS)
    if not by_host.by_host or (by_host.in_folders_alone and are_few(run)):
        return None
    analysis = ManyRanks(run=by_host, has_totals=False).analysis
    return None if tables_tell(run, analysis.blind) else analysis
