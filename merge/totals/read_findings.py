"""Findings of whatever a path leads to: a run, traces of other programs, a merge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from distprof.contract.tables import MODULES, STEPS
from distprof.merge.clock.model import Clock
from distprof.merge.cost.choice import Choice, chosen
from distprof.merge.cost.measured_run import measured_run
from distprof.merge.levels.all_tables import tables_tell
from distprof.merge.levels.level_run import level_run
from distprof.merge.run.merged import is_merge, open_merge, origin_of
from distprof.merge.run.open_run import NO_SIZES, open_run
from distprof.merge.run.tables import read_table
from distprof.merge.totals.findings import Findings, findings, findings_about
from distprof.merge.totals.many_ranks import findings_of_many
from distprof.merge.totals.step_time import step_time_of


def findings_of(path: Path, *more: Path, choice: Choice, sizes: Mapping[str, int] = NO_SIZES,
                of_rows: bool = True) -> Findings:
    """Reads a run, and matches, measures and explains its collectives.

    Args:
        path: A run directory, traces of other programs or a merge.
        *more: Further run directories of the same job.
        choice: Which collectives.
        sizes: Axis of the device mesh -> size, in place of what the run says.
        of_rows: False where what calls cost together is enough, and not each rank of each call is asked for.

    Raises:
        DataError: It cannot be read.
        UsageError: There is no such op, group or step.
    """
    paths = (path, *more) if more else origin_of(path)
    if is_merge(path) and paths == (path,):
        return _of_merge(path, choice)
    run = open_run(*paths, sizes=sizes, by_host=not of_rows, only=(STEPS.file, MODULES.file))
    if run.summaries is not None:
        found = findings_of_many(level_run(run, read_table(run, STEPS).rows), choice)
        if found.analysis is None or not tables_tell(run, found.analysis.blind):
            return found
        run = open_run(*paths, sizes=sizes)
    measured = measured_run(run)
    return findings(measured, read_table(measured.run, STEPS) if measured.run.kind == "distprof" else None, choice)


def _of_merge(path: Path, choice: Choice) -> Findings:
    merge = open_merge(path)
    found = findings_about(merge.run, Clock.of_summary(merge.summary["clock"]), chosen(merge.collectives, choice),
                           choice, None, step_time_of(merge.summary["step"]))
    return found if choice.is_of_some else replace(found, communication=merge.summary["communication"])
