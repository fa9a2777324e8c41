"""Defines the step time of a job, the only number called so, over steps without heavy instrumentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl

from distprof.arrays import Floats
from distprof.contract.passes import ARRIVALS, MEMORY, TIME, TRACE
from distprof.merge.activity.breakdown import mean_steps

LIGHT = (TIME, ARRIVALS)
"""Passes without heavy instrumentation."""
TRACED = ((TRACE,), (MEMORY,))
"""Passes used if there are no light ones; the first that exists."""
LIGHTEST = 1.1
"""Timers that make steps longer by more than this ratio, because the host can hardly keep a GPU busy, are heavy."""
SETTLES = 3
"""From this many steps of a pass on, the first is left out if recording warms up in it."""
FEWEST = 8
"""Minimum number of steps to tell that they are of several kinds."""
SEVERAL_KINDS = 0.1
"""Steps are of several kinds if the mean of the middle half differs from the median by more than this share of it."""
LEAST, MOST = 0.05, 0.95
"""Quantiles that are reported as the spread of step times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """How long a step takes: the mean over ranks for each step, and the `middle` of these."""

    time_ns: float
    low_ns: float
    """5th percentile of the steps."""
    high_ns: float
    """95th percentile of the steps."""
    num_steps: int
    passes: list[str]
    """Passes that the steps belong to."""

    @property
    def is_light(self) -> bool:
        """True if these steps had no heavy instrumentation; otherwise the profiler was on."""
        return set(self.passes) <= set(LIGHT)

    def scale(self, measured_ns: float | None) -> float:
        """Returns the factor that turns times measured in steps of this mean duration into parts of the step time."""
        return self.time_ns / measured_ns if measured_ns else 1.0


def middle_half(values: Floats) -> Any:
    """Returns the interquartile mean over the second last axis, separately for each item: a step in which a rank lost
    its processor does not count."""
    number = values.shape[-2]
    return np.sort(values, axis=-2)[..., number // 4:number - number // 4, :].mean(axis=-2)


def middle(values: Floats) -> Floats:
    """Returns the typical duration of steps, over the second last axis: the median.

    If steps are of several kinds, for example if every second one is long, the median is the edge of one kind, and it
    is chance which one: then the mean of the middle half is returned.
    """
    number = values.shape[-2]
    median = np.median(values, axis=-2)
    if number < FEWEST:
        return median
    half = middle_half(values)
    return np.where(np.abs(half - median) > SEVERAL_KINDS * np.abs(median), half, median)


def settled(steps: pl.DataFrame, passes: Sequence[str]) -> pl.DataFrame:
    """Returns steps of passes that all ranks of the pass have, without those in which recording warms up.

    Args:
        steps: Has `rank`, `step`, `pass`, and more.
        passes: Names of passes.
    """
    rank, step, parts = steps["rank"].to_numpy(), steps["step"].to_numpy(), [np.empty(0, np.int64)]
    for name in passes:
        found = np.flatnonzero((steps["pass"] == name).fill_null(False).to_numpy())
        if name != TIME and len(each := np.unique(step[found])) >= SETTLES:
            found = found[step[found] > each[0]]
        each, place = np.unique(step[found], return_inverse=True)
        ranks, of_rank = np.unique(rank[found], return_inverse=True)
        # distinct pairs of a step and a rank: a step that all ranks took has as many as there are ranks
        known = np.unique(place * len(ranks) + of_rank) // max(len(ranks), 1)
        parts.append(found[(np.bincount(known, minlength=len(each)) == len(ranks))[place]])
    return steps[np.concatenate(parts)]


def step_time(steps: pl.DataFrame, passes: Sequence[str] | None = None) -> StepTime | None:
    """Computes the step time from a table of steps.

    Args:
        steps: `rank`, `step`, `pass` and `duration_ns`, whoever recorded them.
        passes: Only steps of these passes; None: light passes or, if there are none, passes with a timeline.

    Returns:
        None if there is no such step.
    """
    steps = on_device(steps).select("rank", "step", "pass", "duration_ns")  # rows are copied below
    every = (settled(steps, some) for some in ((light_passes(steps), *TRACED) if passes is None else (passes,)))
    found = next((rows for rows in every if len(rows)), None)
    if found is None:
        return None
    each = found.group_by("step", maintain_order=True).agg(pl.col("duration_ns").mean())["duration_ns"].to_numpy()
    low, high = np.quantile(each, (LEAST, MOST)).tolist()
    return StepTime(time_ns=float(middle(each[:, None])[0]), low_ns=low, high_ns=high, num_steps=len(each),
                    passes=sorted(found["pass"].cast(pl.String).unique().to_list()))


def on_device(steps: pl.DataFrame) -> pl.DataFrame:
    """Replaces `duration_ns` by the time on the device, where it is known: the host may run ahead of the device."""
    return steps.with_columns(duration_ns=pl.coalesce("device_ns", "duration_ns")) if (
        "device_ns" in steps.columns) else steps


def light_passes(steps: pl.DataFrame) -> Sequence[str]:
    """Returns the light passes whose steps count for step times, if there are any.

    Args:
        steps: `rank`, `step`, `pass` and `duration_ns`.
    """
    timed, arrivals = (settled(steps, (name,)) for name in LIGHT)
    if arrivals["step"].n_unique() < SETTLES or not len(timed):
        return LIGHT
    usual = arrivals["duration_ns"].median()
    return (ARRIVALS,) if timed["duration_ns"].median() > LIGHTEST * usual else LIGHT  # type: ignore[operator]


def parts_of_step(breakdown: pl.DataFrame, usual: StepTime | None) -> list[dict[str, Any]]:
    """Returns the mean step of each rank, as parts of the step time.

    Args:
        breakdown: See `step_breakdown`.
        usual: The step time; None: times stay as measured.
    """
    rows = mean_steps(breakdown)
    known = [row["duration_ns"] for row in rows if row["duration_ns"] is not None]
    scale = 1.0 if usual is None or not known else usual.scale(float(np.mean(known)))
    return [{name: value * scale if name.endswith("_ns") and value is not None else value
             for name, value in row.items()} for row in rows]


def step_time_of(step: Mapping[str, Any]) -> StepTime | None:
    """Restores the step time from `step` of `summary.json`."""
    names = StepTime.__dataclass_fields__
    return None if step.get("time_ns") is None else StepTime(**{name: step[name] for name in names})


def step_time_data(found: StepTime | None) -> dict[str, Any] | None:
    """Returns `step_time` of what commands print with `--json`."""
    return None if found is None else asdict(found)


def passes_of(steps: pl.DataFrame, usual: StepTime | None) -> list[dict[str, Any]]:
    """Returns the step time of each pass: `pass`, `num_steps`, `time_ns` and `ratio` to that of the job, or null."""
    names = steps.select("step", "pass").sort("step")["pass"].cast(pl.String).unique(maintain_order=True).to_list()
    each = [(name, found) for name in names if (found := step_time(steps, (name,))) is not None]
    return [{"pass": name, "num_steps": found.num_steps, "time_ns": found.time_ns,
             "ratio": None if usual is None else found.time_ns / usual.time_ns} for name, found in each]
