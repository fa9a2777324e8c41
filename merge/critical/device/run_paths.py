"""The critical paths of the devices of a run: chooses ranks and steps, and refuses incomplete timelines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from distprof.contract.passes import ARRIVALS
from distprof.errors import DataError, UsageError
from distprof.merge.activity.device.mean_steps import counted_steps, settled_steps
from distprof.merge.activity.markers import STEP
from distprof.merge.activity.run_activity import samples_of
from distprof.merge.clock.model import Clock
from distprof.merge.critical.device.path import DevicePath, device_path
from distprof.merge.program.run_program import RunProgram
from distprof.merge.run.run_model import Run
from distprof.units import numbered, percent, spans

MISSING = 0.05
"""Share of commands without a launch, or of launches without a command, from which no path is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePaths:
    """The critical paths of devices, for the steps that are shown."""

    run: Run
    clock: Clock
    path: DevicePath
    """The paths of these steps."""
    skipped: int | None
    """The first step, if it was left out because the profiler warms up in it."""

    @property
    def steps(self) -> list[int]:
        """Numbers of the steps that are shown."""
        return self.path.steps["step"].unique().sort().to_list()


def device_paths(run: Run, clock: Clock, program: RunProgram, *, ranks: Sequence[int] = (),
                 wanted: Sequence[int] = ()) -> DevicePaths | None:
    """Finds the paths of devices; None if no rank has a device that did anything.

    Args:
        run: The run.
        clock: The clock of the run.
        program: What its ranks did.
        ranks: Ranks to include; if empty, all with a timeline.
        wanted: Steps to include; if empty, those that count.

    Raises:
        DataError: Too many launches or commands are missing to know what waited for what.
        UsageError: There is no such step.
    """
    shown = [rank for rank in program.timelines if not ranks or rank in ranks]
    found = [one for one in (_of_rank(rank, run, clock, program) for rank in shown) if one is not None]
    if not found or not any(len(one.steps) for one in found):
        return None
    path = DevicePath.joined(found)
    there = sorted(set(path.steps["step"].to_list()))
    for step in wanted:
        if step not in there:
            raise UsageError(f"no step {step}; --step can be {spans(there)}")
    chosen = sorted(set(wanted)) or settled_steps(there)
    path = _sure(run, path.of_steps(path.steps.filter(pl.col("step").is_in(chosen))), wanted=bool(wanted))
    return DevicePaths(run=run, clock=clock, path=path, skipped=None if wanted or chosen == there else there[0])


def _of_rank(rank: int, run: Run, clock: Clock, program: RunProgram) -> DevicePath | None:
    events = program.timelines[rank]
    windows = program.windows.filter(pl.col("rank") == rank, pl.col("pass") != ARRIVALS)
    if events.is_empty() or windows.is_empty():
        return None
    # a trace that marks no steps counts as one
    is_marked = run.kind == "distprof" or bool(events["name"].str.starts_with(STEP).any())
    samples = next(samples_of(one, clock.line(rank)) for one in run.ranks if one.number == rank)
    return device_path(rank, events, windows.select("step", "start_ns", "end_ns", is_marked=pl.lit(is_marked)), samples)


def _sure(run: Run, path: DevicePath, *, wanted: bool) -> DevicePath:
    """Returns the paths of steps whose launches are known; those without a known end only if others are too few."""
    known = path.steps.filter(pl.col("unsent_ratio") < MISSING)
    if known.is_empty():
        steps = path.steps["step"].unique().sort().to_list()
        raise DataError(f"the launches of {percent(path.steps['unsent_ratio'].mean())} of the commands in "  # type: ignore[arg-type]
                        f"{numbered('step', steps)} are missing in {run.path}: what the device waited for is unknown",
                        hint="record with CPU and GPU activities of torch.profiler; distprof comms RUN counts them")
    if path.lost > MISSING * path.launches:
        raise DataError(f"the commands of {percent(path.lost / path.launches)} of the launches are missing in "
                        f"{run.path}: what the device waited for is unknown",
                        hint="the profiler lost them; record fewer steps")
    return path.of_steps(known if wanted else counted_steps(known))
