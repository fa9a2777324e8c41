"""Steps of the job outside of the passes: how many there were, and whether the step time changed."""

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
"""Ranks whose steps are read, spread evenly: ranks of a job step together."""
FEWEST = 10
"""Steps, or rows of short ones, before and behind a change."""
SURE = 1e-4
"""Largest probability of chance of a change."""
MATERIAL = 1.2
"""Smallest ratio of the medians before and behind it."""
BESIDE = 3
"""Steps by which a change may be found beside the end of the last pass that is due to it."""
LOOKED_NS = 20e9
"""A watch that is shorter may see too little to say that nothing has changed."""
AHEAD = 0.1
"""Part of a device's step by which that of the host differs where the host runs ahead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepChange:
    """From a step on, steps take longer or shorter than before."""

    step: int
    before_ns: float
    """Median of the steps before."""
    after_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSteps:
    """All steps of a job."""

    num_recorded: int
    num_run: int | None
    """None where nothing tells how many there were."""
    later_ns: float | None
    """Median of the steps that were not recorded; None where none are known."""
    change: StepChange | None


def job_steps(run: Run, steps: pl.DataFrame) -> JobSteps:
    """What is known of all steps of a job.

    Args:
        run: What was recorded.
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
    """`steps` of `summary.json`: `JobSteps`, and what the watch of the whole job noticed.

    Args:
        run: What was recorded.
        steps: Its `STEPS`.
    """
    found, state = job_steps(run, steps), known_state(run)
    change = None if _replaces(state, found.change) else found.change
    return {**asdict(found), "change": None if change is None else asdict(change), "watched": data_of(state)}


def _replaces(state: WatchState | None, change: StepChange | None) -> bool:
    """Whether the watch, which looks closer, would have seen the change: it began in a watched step."""
    if state is None or state.first_watched is None or change is None:
        return False
    if any(one.kind != "pauses" for one in state.findings):
        return True
    return change.step > state.first_watched + BESIDE and (state.elapsed_ns or 0) >= LOOKED_NS


def _ends(columns: Columns) -> np.ndarray:
    """The step behind each row."""
    return columns["first_step"] + columns["num_steps"]


def _each(later: list[Columns]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps, how many, and how long each took as the mean over ranks: by the rows of the rank with the fewest."""
    first = max(int(columns["first_step"][0]) for columns in later)
    last = min(int(_ends(columns)[-1]) for columns in later)
    coarse = min(later, key=lambda columns: len(columns["first_step"]))
    inside = (coarse["first_step"] >= first) & (_ends(coarse) <= last)
    begins, ends = coarse["first_step"][inside], _ends(coarse)[inside]
    each = [(_elapsed(columns, ends) - _elapsed(columns, begins)) / (ends - begins) for columns in later]
    return begins, ends - begins, np.mean(each, axis=0)


def _elapsed(columns: Columns, steps: np.ndarray) -> np.ndarray:
    """Time that steps of a rank took in all until these begin; those of a gap, which nobody noted, took none."""
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
    """Durations of steps on the host, over ranks, as those of the later steps are measured."""
    return light.group_by("step").agg(duration_ns=(pl.col("end_ns") - pl.col("start_ns")).mean()).sort("step")


def _runs_ahead(light: pl.DataFrame) -> bool:
    """True where steps of the host do not show how long steps take: its device works through them later."""
    device = light["device_ns"].drop_nulls() if "device_ns" in light.columns else light.head(0).to_series()
    if not len(device):
        return False
    host_ns, device_ns = float(np.median(_on_host(light)["duration_ns"])), float(np.median(device))
    return abs(host_ns - device_ns) > AHEAD * device_ns


def _change(light: pl.DataFrame, later: np.ndarray, each: np.ndarray) -> StepChange | None:
    """The change over light steps and later ones; steps that are shorter once nothing is recorded are none."""
    known, first = _on_host(light), int(later[0])
    found = step_change(np.concatenate((known["step"].to_numpy(), later)),
                        np.concatenate((known["duration_ns"].to_numpy(), each)))
    if found is not None and found.after_ns < found.before_ns and abs(found.step - first) <= BESIDE:
        return step_change(later, each)
    return found


def _some(run: Run) -> list[int]:
    """Indices of ranks that are looked at."""
    number = len(run.ranks)
    return sorted({index * number // min(number, LOOKED_AT) for index in range(min(number, LOOKED_AT))})


def _later(run: Run, index: int) -> Columns | None:
    """What a rank noted of its steps outside of the passes."""
    folder = run.ranks[index].folder
    columns = RankReader(folder).new().columns
    return columns if len(columns["first_step"]) else old_columns(folder)


def step_change(steps: np.ndarray, durations: np.ndarray) -> StepChange | None:
    """The step from which on steps take longer or shorter, by Pettitt's test (1979) for a single change of the median.

    Args:
        steps: Their numbers, ascending.
        durations: ns.

    Returns:
        None where there is none, or it is small.
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
