"""Opens a run as a graph that can be replayed, for `critical-path` and `whatif`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from distprof.contract.tables import STEPS
from distprof.errors import DataError, UsageError
from distprof.merge.blame.candidates import MOST_MISSED
from distprof.merge.clock.model import Clock
from distprof.merge.cost.measured_run import MeasuredRun, measured_run
from distprof.merge.program.job import Job
from distprof.merge.program.run_program import RunProgram, run_program
from distprof.merge.replay.graph import WAIT
from distprof.merge.run.merged import is_merge, origin_of
from distprof.merge.run.open_run import NO_SIZES, open_run
from distprof.merge.run.run_model import Run
from distprof.merge.run.tables import read_table
from distprof.units import spans


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayable:
    """A run, and what its ranks did."""

    run: Run
    clock: Clock
    program: RunProgram
    job: Job
    recorded: pl.DataFrame
    """Steps of all passes: `STEPS`; for traces of other programs, the marked steps."""

    @property
    def steps(self) -> list[int]:
        """Steps that can be replayed."""
        return [int(step) for step in np.unique(self.job.steps[:, 1])]

    @property
    def on_device(self) -> bool:
        """Whether the activity of any rank is that of its device."""
        return any(one.on_device for one in self.program.did.values())

    @property
    def guessed(self) -> list[int]:
        """Ranks for which more than `MOST_MISSED` of the waits are known only from other ranks."""
        return [int(rank) for rank in self.job.ranks[self.job.misses_waits > MOST_MISSED]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A run that is read far enough to decide whether it can be replayed."""

    measured: MeasuredRun
    program: RunProgram
    steps: pl.DataFrame | None
    """`STEPS` of the run; None for traces of other programs."""

    @property
    def recorded(self) -> pl.DataFrame:
        """Steps of all passes."""
        return self.program.windows if self.steps is None else self.steps

    @property
    def run(self) -> Run:
        """The run, with notes about what is incomplete."""
        return self.measured.run.noting(self.program.problems)

    @property
    def clock(self) -> Clock:
        """The clock of the run."""
        return self.measured.clock

    @property
    def guessed(self) -> list[int]:
        """As in `Replayable`, but empty: it only matters for a replay of all ranks."""
        return []

    @property
    def on_device(self) -> bool:
        """As in `Replayable`, but False: it only matters for a replay of all ranks."""
        return False

    @property
    def is_alone(self) -> bool:
        """Whether no rank waits for another; see the function `is_alone`."""
        return is_alone(self.measured.run, self.program)

    def replayable(self) -> Replayable:
        """Makes the graph of all ranks.

        Raises:
            DataError: It cannot be replayed.
        """
        return checked(self.measured, self.program, self.program.job(), self.steps)


def is_alone(run: Run, program: RunProgram) -> bool:
    """Returns whether no rank waits for another, as far as the run shows."""
    return len(run.ranks) == 1 or program.rows.drop_nulls(("arrival_ns", "end_ns")).is_empty()


def opened(path: Path, *more: Path, sizes: Mapping[str, int] = NO_SIZES) -> Opened:
    """Reads a run; see `open_replayable`.

    Raises:
        DataError: It cannot be read.
    """
    paths = (path, *more) if more else origin_of(path)
    if paths == (path,) and is_merge(path):
        raise DataError(f"{path} holds only a merge, not a run with its ranks",
                        hint="pass the run directory that it was made from")
    measured, steps = measured_run(open_run(*paths, sizes=sizes)), None
    if measured.run.kind == "distprof":
        recorded = read_table(measured.run, STEPS)
        measured, steps = measured.noting(recorded.problems), recorded.rows
    return opened_run(measured, steps)


def opened_run(measured: MeasuredRun, steps: pl.DataFrame | None) -> Opened:
    """Reads the timelines of a run whose collectives are known.

    Args:
        measured: The run, with its collectives.
        steps: `STEPS` of the run; None for traces of other programs.
    """
    assert measured.collectives is not None
    return Opened(measured=measured, steps=steps,
                  program=run_program(measured.run, measured.clock, measured.collectives, steps))


def open_replayable(path: Path, *more: Path, sizes: Mapping[str, int] = NO_SIZES) -> Replayable:
    """Reads a run as a graph that can be replayed.

    Args:
        path: A run directory, traces of other programs, or the merge of a run.
        *more: Further run directories of the same job.
        sizes: Axis of the device mesh -> size; overrides what the run says.

    Raises:
        DataError: It cannot be read, or its ranks cannot be put into one graph.
    """
    return opened(path, *more, sizes=sizes).replayable()


def checked(measured: MeasuredRun, program: RunProgram, job: Job, steps: pl.DataFrame | None) -> Replayable:
    """Checks that a graph can be replayed. If some ranks were recorded lightly, it keeps only equally recorded steps.

    Args:
        measured: The run.
        program: What its ranks did.
        job: The graph of the run.
        steps: `STEPS` of the run; None for traces of other programs.

    Raises:
        DataError: It cannot be replayed.
    """
    run, clock = measured.run, measured.clock
    recorded = program.windows if steps is None else steps
    if run.light_ranks:
        program = program.of_even_steps()
        if not program.arrivals:
            raise DataError(f"no step in {run.path} was recorded the same way on all ranks",
                            hint="record some with --steps arrivals=20, or record all ranks fully")
        job = program.job()
    _check(run, clock, job)
    return Replayable(run=run.noting(program.problems), clock=clock, program=program, job=job,
                      recorded=recorded)


def _check(run: Run, clock: Clock, job: Job) -> None:
    what = f"in {run.path}"
    if not len(job.graph.parts):
        raise DataError(f"no collectives with known times {what}",
                        hint="distprof comms RUN shows what was recorded" if len(run.ranks) > 1 else
                        "a rank alone has a path only through a GPU; distprof ops RUN shows where its time goes")
    if not len(job.steps):
        raise DataError(f"no steps with collectives {what}")
    if len(job.ranks) > 1 and not (job.graph.events.kind == WAIT).any():
        raise DataError(f"no waits for collectives {what}: what ranks waited for is unknown")
    if len(job.ranks) > 1 and clock.pair_uncertainty_ns() is None:
        raise DataError(f"some clocks {what} were never compared",
                        hint="without that, times of different ranks cannot be ordered")


def chosen_steps(found: Replayable, wanted: Sequence[int]) -> list[int]:
    """Returns the steps to show: the wanted ones; if none, those with a timeline; if none, those of the arrivals pass.

    Raises:
        UsageError: There is no such step.
    """
    for one in wanted:
        if one not in found.steps:
            raise UsageError(f"no step {one}; --step can be {spans(found.steps)}")
    there = set(found.steps)
    usual = [step for step in found.program.traced or found.program.arrivals if step in there]
    return sorted(set(wanted)) or usual or found.steps
