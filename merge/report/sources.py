"""Opens a run once, and computes what commands derive from it, each when a section first needs it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from distprof.contract.problems import Problem
from distprof.contract.tables import MODULES, STEPS, WAITS
from distprof.errors import DataError
from distprof.merge.activity.rank_slices import step_windows
from distprof.merge.cost.joined_run import OF_ROWS, rows_of_ranks
from distprof.merge.cost.measured_run import MeasuredRun, measured_run
from distprof.merge.critical.critical_path import CriticalPath, critical_path
from distprof.merge.critical.device.run_paths import DevicePaths, device_paths
from distprof.merge.critical.replayable import Replayable, checked, chosen_steps, is_alone
from distprof.merge.memory.run_memory import RunMemory, run_memory
from distprof.merge.operators.grouping import columns_of
from distprof.merge.operators.rank_share import Asked
from distprof.merge.operators.run_operators import RunOperators, run_operators
from distprof.merge.operators.selection import Selection
from distprof.merge.operators.timeline.rank_timeline import RankTimeline
from distprof.merge.program.job import Job
from distprof.merge.program.run_program import RunProgram, run_program
from distprof.merge.run.merged import is_merge, modules_of_merge, origin_of, summary_of_merge
from distprof.merge.run.representatives import of_places, standing_out
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.run.tables import Loaded, read_table
from distprof.merge.totals.findings import EVERYTHING, Findings, findings, findings_of_many
from distprof.merge.totals.many_ranks import ManyRanks, opened
from distprof.merge.totals.recorded_tables import RecordedTables, read_tables
from distprof.merge.totals.summary import reduce
from distprof.merge.waits.run_waits import RunWaits, TracedWaits, run_waits, waits_within, windows_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a user knows better than the run."""

    sizes: Mapping[str, int] = field(default_factory=dict)
    """Axis of the device mesh -> size."""
    peak: float | None = None
    """Peak FLOP/s of each rank's device."""
    bandwidth: float | None = None
    """Memory bandwidth of each rank's device in bytes/s."""


MEASURED = Given()
IN_DETAIL = 8
"""Number of ranks whose timelines are read, in a run of many ranks."""
OPERATORS_BY = ("op", "class")
"""Columns by which operators are grouped."""
Found = TypeVar("Found")


class Sources:
    """What is known about a run."""

    def __init__(self, path: Path, *more: Path, given: Given = MEASURED) -> None:
        """Opens the run.

        Args:
            path: A run directory or traces of other programs; the merge of one.
            *more: Further run directories of the same job.
            given: What the user knows better than the run.

        Raises:
            DataError: It cannot be read.
            UsageError: The product of the given sizes is not the world size.
        """
        self.paths = (path, *more) if more else origin_of(path)
        if self.paths == (path,) and is_merge(path):
            raise DataError(f"{path} holds only a merge, not a run with its ranks",
                            hint="pass the run directory that it was made from")
        self.given = given
        self.opened, self._many = opened(self.paths, self.given.sizes)
        self.in_detail = self.opened if self._many is None else self._looked_at(self._many)
        """The run with the ranks whose timelines are read."""
        self._reading: Future[tuple[RunOperators | DataError, RunWaits | DataError]] | None = None

    @property
    def run(self) -> Run:
        """The run with all problems and remarks found while reading it."""
        return self.comms.run

    @property
    def is_one_graph(self) -> bool:
        """True if all ranks are put into one graph; with many ranks, it would be too large."""
        return self._many is None

    @property
    def is_recorded(self) -> bool:
        """False for traces of other programs."""
        return self.opened.kind == "distprof"

    def _looked_at(self, found: ManyRanks) -> Run:
        late = [rank for one in found.analysis.culprits if one.certain for rank in one.ranks]
        chosen = [*standing_out(found.tables.steps, late), *(rank.number for rank in of_places(self.opened))]
        there = {rank.number for rank in self.opened.ranks if rank.number in chosen and rank.has_folder}
        return self.opened.of_tables({*[rank for rank in dict.fromkeys(chosen) if rank in there][:IN_DETAIL]})

    @cached_property
    def measured(self) -> MeasuredRun:
        """The run on one clock, with its collectives."""
        return measured_run(self.opened)

    @cached_property
    def recorded_steps(self) -> Loaded | None:
        """`STEPS`; None for traces of other programs."""
        return read_table(self.opened, STEPS) if self.is_recorded else None

    @property
    def steps_in_detail(self) -> Loaded | None:
        """The same if the timelines of all ranks are read; else None."""
        return self.recorded_steps if self._many is None else None

    @cached_property
    def tables(self) -> RecordedTables:
        """What totals are made from."""
        return read_tables(self.opened, self.recorded_steps) if self._many is None else self._many.tables

    @cached_property
    def program(self) -> tuple[RunProgram, Job]:
        """What ranks did, and the graph of it."""
        assert self.measured.collectives is not None
        steps = None if self.recorded_steps is None else self.recorded_steps.rows
        found = run_program(self.measured.run, self.measured.clock, self.measured.collectives, steps)
        return found, found.job()

    @cached_property
    def windows(self) -> pl.DataFrame:
        """Start and end on the common clock of each rank's steps whose collectives are recorded."""
        if self._many is None:
            return self.program[0].windows
        steps = self._many.calls.steps.select("rank", "step", "pass", "start_ns", "end_ns")
        return step_windows(self._many.calls.clock, steps, ())

    @cached_property
    def counted_steps(self) -> list[int]:
        """Steps with collectives over which means are taken."""
        found = self.program[0] if self._many is None else self._many.calls
        return [*found.traced, *found.arrivals]

    def calls_of(self, ranks: Collection[int]) -> pl.DataFrame:
        """Returns `OF_ROWS` of the collectives of some ranks, if their arrival is known."""
        rows = self.comms.rows.select(OF_ROWS).filter(pl.col("rank").is_in(list(ranks))) if self._many is None else (
            rows_of_ranks(self._many.calls, ranks))
        return rows.filter(pl.col("arrival_ns").is_not_null())

    @cached_property
    def comms(self) -> Findings:
        """What `distprof comms` shows."""
        if self._many is not None:
            return findings_of_many(self._many, EVERYTHING)
        assert self.measured.collectives is not None
        program = None if self.measured.collectives.is_empty() else self.program
        return findings(self.measured, self.recorded_steps, program=program)

    @cached_property
    def summary(self) -> Mapping[str, Any]:
        """What `distprof stats` shows; from a merge if that is up to date."""
        found = None if self.given.sizes or self.given.peak is not None else summary_of_merge(self.paths)
        if found is not None:
            return found
        if self._many is not None:
            return self._many.summary(self.given.peak)
        tables = self.tables
        return reduce(self.measured.noting(tables.problems), tables, peak=self.given.peak,
                      analysis=self.comms.analysis)[0]

    @cached_property
    def modules(self) -> pl.DataFrame:
        """Modules reduced over ranks; from a merge if that is up to date."""
        found = None if self.given.sizes else modules_of_merge(self.paths)
        if found is not None:
            return found
        return self.tables.modules

    def modules_of(self, ranks: Collection[int], columns: Sequence[str]) -> pl.DataFrame:
        """Returns `rank` and these columns of `MODULES` of some ranks."""
        return read_table(self.opened.of_ranks(ranks), MODULES.only("rank", *columns)).rows

    @property
    def operators(self) -> RunOperators:
        """What `distprof ops` shows.

        Raises:
            DataError: No rank has a timeline.
        """
        return _there(self._timelines[0])

    @property
    def memory(self) -> RunMemory:
        """What `distprof memory` shows.

        Raises:
            DataError: No rank has allocations.
        """
        return _there(self._memory)

    @property
    def waits(self) -> RunWaits:
        """What `distprof waits` shows.

        Raises:
            DataError: Nothing shows waits.
        """
        return _there(self._timelines[1])

    @property
    def replayable(self) -> Replayable:
        """What `distprof critical-path` is computed from.

        Raises:
            DataError: The ranks cannot be put into one graph.
        """
        return _there(self._replayable)

    @property
    def unreadable(self) -> list[Problem]:
        """What could not be read of timelines, allocations and waits."""
        found = (self._timelines[0], self._memory, self._timelines[1])
        return [problem for one in found if not isinstance(one, DataError) for problem in one.problems]

    def read_timelines(self, beside: Executor) -> None:
        """Begins what takes longest and needs nothing of the rest; whoever needs it waits for it, or gets its error."""
        _ = self.recorded_steps  # both threads need it, and a cached property has no lock from Python 3.12 on
        self._reading = beside.submit(self._of_timelines)

    @cached_property
    def _timelines(self) -> tuple[RunOperators | DataError, RunWaits | DataError]:
        return self._of_timelines() if self._reading is None else self._reading.result()

    def _of_timelines(self) -> tuple[RunOperators | DataError, RunWaits | DataError]:
        """Reads operators and waits."""
        operators, traced = self._read_operators()
        if any(rank.has(WAITS) for rank in self.in_detail.ranks):
            traced = {}
        return operators, _tried(lambda: run_waits(self.in_detail, steps=self.steps_in_detail, traced=traced))

    def _read_operators(self) -> tuple[RunOperators | DataError, dict[int, TracedWaits]]:
        """Reads operators, and the waits that the same timelines show."""
        traced, rates = dict[int, TracedWaits](), (self.given.peak, self.given.bandwidth)

        def beside(rank: Rank) -> Callable[[RankTimeline], TracedWaits]:
            return partial(waits_within, rank.number, windows_of(self.recorded_steps, rank))

        def take(rank: Rank, found: TracedWaits) -> None:
            traced[rank.number] = found

        found = _tried(lambda: run_operators(
            self.in_detail, rates, steps=self.steps_in_detail, beside=beside, take=take,
            asked=Asked(selection=Selection(), keys=columns_of(OPERATORS_BY))))
        return found, traced

    @cached_property
    def _memory(self) -> RunMemory | DataError:
        return _tried(lambda: run_memory(self.in_detail))

    @cached_property
    def _replayable(self) -> Replayable | DataError:
        measured = self.measured
        if self.recorded_steps is not None:
            measured = measured.noting(self.recorded_steps.problems)
        steps = None if self.recorded_steps is None else self.recorded_steps.rows
        return _tried(lambda: checked(measured, *self.program, steps))

    @cached_property
    def critical_path(self) -> CriticalPath:
        """The longest chains of steps with a timeline.

        Raises:
            DataError: See `replayable`.
        """
        found = self.replayable
        return critical_path(found.program, found.job, chosen_steps(found, ()))

    @property
    def device_paths(self) -> DevicePaths | None:
        """The chains through devices, if no rank waits for another; otherwise None.

        Raises:
            DataError: Too many launches are missing.
        """
        run, program = self.measured.run, self.program[0]
        return device_paths(run, self.measured.clock, program) if is_alone(run, program) else None


def _tried(work: Callable[[], Found]) -> Found | DataError:
    """Returns the result or the error, so that missing data is looked for only once."""
    try:
        return work()
    except DataError as error:
        return error


def _there(found: Found | DataError) -> Found:
    if isinstance(found, DataError):
        raise found
    return found
