"""Steps of the job that followed the last pass: how many there were, and whether the step time changed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from distprof.contract.paths import STEP_ENDS
from distprof.contract.step_ends import step_ends
from distprof.errors import DataError
from distprof.files import read_small
from distprof.merge.run.run_model import Run
from distprof.merge.totals.step_time import LIGHT, settled

MOST_BYTES = 1 << 28
"""Of one rank's time stamps: more are not read."""
LOOKED_AT = 16
"""Ranks whose time stamps are read, spread evenly: ranks of a job step together."""
FEWEST = 10
"""Steps before and behind a change."""
SURE = 1e-4
"""Largest probability of chance of a change."""
MATERIAL = 1.2
"""Smallest ratio of the medians before and behind it."""
BESIDE = 3
"""Steps by which a change may be found beside the end of the last pass that is due to it."""
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
    first = max(number for number, _ in later)
    ends = min(number + len(durations) for number, durations in later)
    each = np.mean([durations[first - number:ends - number] for number, durations in later], axis=0) if (
        ends > first) else np.empty(0)
    light = settled(steps, LIGHT)
    tells = len(each) > 0 and not _runs_ahead(light)
    return JobSteps(num_recorded=recorded, num_run=max(number + len(durations) for number, durations in later),
                    later_ns=float(np.median(each)) if tells else None,
                    change=_change(light, first, each) if tells else None)


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


def _change(light: pl.DataFrame, first: int, each: np.ndarray) -> StepChange | None:
    """The change over light steps and later ones; steps that are shorter once nothing is recorded are none."""
    known, later = _on_host(light), np.arange(first, first + len(each))
    found = step_change(np.concatenate((known["step"].to_numpy(), later)),
                        np.concatenate((known["duration_ns"].to_numpy(), each)))
    if found is not None and found.after_ns < found.before_ns and abs(found.step - first) <= BESIDE:
        return step_change(later, each)
    return found


def _some(run: Run) -> list[int]:
    """Indices of ranks that are looked at."""
    number = len(run.ranks)
    return sorted({index * number // min(number, LOOKED_AT) for index in range(min(number, LOOKED_AT))})


def _later(run: Run, index: int) -> tuple[int, np.ndarray] | None:
    """The number of the first later step of a rank, and the durations of all."""
    try:
        found = step_ends(read_small(run.ranks[index].folder / STEP_ENDS, MOST_BYTES))
    except (OSError, DataError):
        return None
    return None if found is None else (found[0], np.diff(np.array(found[1], np.int64)).astype(float))


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
