"""Finds how many steps the job ran outside of the passes, and whether the step time changed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl

from distprof.contract.watch_state import WatchState, data_of
from distprof.merge.run.run_model import Run
from distprof.merge.totals.step_time import LIGHT, settled
from distprof.merge.watch.job_watch import known_state
from distprof.merge.watch.pieces import Columns, RankReader, old_columns

LOOKED_AT = 16
"""Number of ranks whose steps are read, spread evenly: ranks of a job step together."""
FEWEST = 10
"""Minimum number of steps, or rows of short steps, before and after a change point."""
SURE = 1e-4
"""A change point is reported only if its p-value is at most this."""
MATERIAL = 1.2
"""A change point is reported only if the medians before and after it differ by at least this ratio."""
BESIDE = 3
"""A change at most this many steps from the end of the last pass may be due to that end."""
LOOKED_NS = 20e9
"""In ns: a shorter watch may see too little to say that nothing has changed."""
AHEAD = 0.1
"""The host counts as running ahead if its step time differs by more than this share of the device's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepChange:
    """A change point from which on steps take longer or shorter."""

    step: int
    before_ns: float
    """Median of the steps before; `after_ns` of those after."""
    after_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSteps:
    """All steps of a job."""

    num_recorded: int
    num_run: int | None
    """Number of steps that the job ran; None if unknown."""
    later_ns: float | None
    """Median of the steps that were not recorded; None if none are known."""
    change: StepChange | None


def job_steps(run: Run, steps: pl.DataFrame) -> JobSteps:
    """Returns what is known about all steps of a job.

    Args:
        run: The recorded run.
        steps: Its `STEPS`.
    """
    later = [found for rank in _some(run) if (found := _later(run, rank)) is not None]
    recorded = int(steps["step"].max()) + 1 if len(steps) else 0  # type: ignore[arg-type]
    if not later:
        return JobSteps(num_recorded=recorded, num_run=None, later_ns=None, change=None)
    numbers, weights, each = _each(later)
    light = settled(steps, LIGHT)
    tells = len(each) > 0 and not _runs_ahead(light)
    return JobSteps(num_recorded=recorded, num_run=max(int(_ends(columns)[-1]) for columns in later),
                    later_ns=_median(each, weights) if tells else None,
                    change=_change(light, numbers, each) if tells else None)


def steps_data(run: Run, steps: pl.DataFrame) -> dict[str, Any]:
    """Returns `steps` of `summary.json`: `JobSteps`, and what the watch of the whole job noticed.

    Args:
        run: The recorded run.
        steps: Its `STEPS`.
    """
    found, state = job_steps(run, steps), known_state(run)
    change = None if _replaces(state, found.change) else found.change
    return {**asdict(found), "change": None if change is None else asdict(change), "watched": data_of(state)}


def _replaces(state: WatchState | None, change: StepChange | None) -> bool:
    """Returns whether the more precise watch would have seen the change, because it began in a watched step."""
    if state is None or state.first_watched is None or change is None:
        return False
    if any(one.kind != "pauses" for one in state.findings):
        return True
    return change.step > state.first_watched + BESIDE and (state.elapsed_ns or 0) >= LOOKED_NS


def _ends(columns: Columns) -> np.ndarray:
    """Returns the step after each row."""
    return columns["first_step"] + columns["num_steps"]


def _each(later: list[Columns]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns first steps, numbers of steps and mean step times over ranks, by the rows of the coarsest rank."""
    first = max(int(columns["first_step"][0]) for columns in later)
    last = min(int(_ends(columns)[-1]) for columns in later)
    coarse = min(later, key=lambda columns: len(columns["first_step"]))
    inside = (coarse["first_step"] >= first) & (_ends(coarse) <= last)
    begins, ends = coarse["first_step"][inside], _ends(coarse)[inside]
    each = [(_elapsed(columns, ends) - _elapsed(columns, begins)) / (ends - begins) for columns in later]
    return begins, ends - begins, np.mean(each, axis=0)


def _elapsed(columns: Columns, steps: np.ndarray) -> np.ndarray:
    """Returns the total time of a rank's steps before each of the given steps; unrecorded gaps take no time."""
    spent = np.cumsum(columns["span_ns"])
    edges = np.stack((columns["first_step"], _ends(columns)), 1).ravel()
    elapsed: np.ndarray = np.interp(steps, edges, np.stack((spent - columns["span_ns"], spent), 1).ravel())
    return elapsed


def _median(values: np.ndarray, weights: np.ndarray) -> float:
    order = np.argsort(values, kind="stable")
    summed = np.cumsum(weights[order])
    middle = np.searchsorted(summed, (summed[-1] / 2, summed[-1] / 2 + 0.5))
    return float(np.mean(values[order][middle]))


def _on_host(light: pl.DataFrame) -> pl.DataFrame:
    """Returns mean step times over ranks on the host, as those of later steps are measured."""
    return light.group_by("step").agg(duration_ns=(pl.col("end_ns") - pl.col("start_ns")).mean()).sort("step")


def _runs_ahead(light: pl.DataFrame) -> bool:
    """Returns whether host step times do not show how long steps take, because the device runs behind."""
    device = light["device_ns"].drop_nulls() if "device_ns" in light.columns else light.head(0).to_series()
    if not len(device):
        return False
    host_ns, device_ns = float(np.median(_on_host(light)["duration_ns"])), float(np.median(device))
    return abs(host_ns - device_ns) > AHEAD * device_ns


def _change(light: pl.DataFrame, later: np.ndarray, each: np.ndarray) -> StepChange | None:
    """Finds a change in light and later steps, unless steps merely got shorter when recording ended."""
    known, first = _on_host(light), int(later[0])
    found = step_change(np.concatenate((known["step"].to_numpy(), later)),
                        np.concatenate((known["duration_ns"].to_numpy(), each)))
    if found is not None and found.after_ns < found.before_ns and abs(found.step - first) <= BESIDE:
        return step_change(later, each)
    return found


def _some(run: Run) -> list[int]:
    """Returns the indices of the ranks whose steps are read."""
    number = len(run.ranks)
    return sorted({index * number // min(number, LOOKED_AT) for index in range(min(number, LOOKED_AT))})


def _later(run: Run, index: int) -> Columns | None:
    """Returns what a rank logged about its steps outside of the passes."""
    folder = run.ranks[index].folder
    columns = RankReader(folder).new().columns
    return columns if len(columns["first_step"]) else old_columns(folder)


def step_change(steps: np.ndarray, durations: np.ndarray) -> StepChange | None:
    """Finds the step from which on steps take longer or shorter, by Pettitt's test (1979) for a single change point.

    Args:
        steps: Step numbers, ascending.
        durations: Step times in ns.

    Returns:
        None if there is no change, or it is small.
    """
    number = len(durations)
    if number < 2 * FEWEST:
        return None
    rank = durations.argsort(kind="stable").argsort(kind="stable") + 1.0
    statistic = np.abs(2 * np.cumsum(rank)[:-1] - np.arange(1, number) * (number + 1))
    place = int(np.argmax(statistic[FEWEST - 1:number - FEWEST])) + FEWEST
    chance = 2 * np.exp(-6.0 * statistic[place - 1] ** 2 / (float(number) ** 3 + float(number) ** 2))
    before, after = float(np.median(durations[:place])), float(np.median(durations[place:]))
    if chance > SURE or max(before, after) < MATERIAL * min(before, after):
        return None
    return StepChange(step=int(steps[place]), before_ns=before, after_ns=after)
