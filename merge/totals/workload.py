"""Compares how much data steps process: the step whose work was counted may differ from the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from distprof.arrays import Floats
from distprof.contract.passes import COUNT
from distprof.merge.totals.step_time import StepTime, middle, on_device, settled

Unit = Literal["elements", "samples", "forward_calls"]
UNITS: tuple[Unit, ...] = ("samples", "forward_calls")
"""Units of data, of which the first known one is used; elements are used instead if their number per sample varies."""
LENGTH = ("samples", "elements")
AMOUNTS = (*UNITS, "elements")
"""Columns of all of these."""
UNLIKE = 0.01
"""Relative difference from which on the counted step is unlike the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Data per step, as means over ranks."""

    unit: Unit
    usual: float
    """Mean over the steps that the step time is based on."""
    usual_ns: float
    """Mean duration of these steps, each counted with the `middle` of those with as much data."""
    counted: float | None
    """Data of the counted step; None if there is none."""
    most_often: float
    """The most frequent value in these steps; of several, the largest."""

    @property
    def counted_ns(self) -> float:
        """How long a step with as much data as the counted one takes."""
        return self.usual_ns if self.counted is None else self.usual_ns * self.counted / self.usual

    @property
    def is_unlike(self) -> bool:
        """True if the counted step had more or less data than the others."""
        return self.counted is not None and abs(self.counted / self.usual - 1) > UNLIKE


def workload(steps: pl.DataFrame, usual: StepTime, unit: Unit | None = None) -> Workload | None:
    """Determines the workload from `STEPS`, in a given unit or in the most informative one; None if unknown."""
    steps = on_device(steps).select("rank", "step", "pass", "duration_ns", *AMOUNTS)  # rows are copied below
    timed, counted = settled(steps, usual.passes), steps.filter(pl.col("pass") == COUNT)
    known: tuple[Unit, ...] = UNITS if unit is None else (unit,)
    if unit is None and _lengths_vary(pl.concat([timed.select(LENGTH), counted.select(LENGTH)])):
        known = ("elements",)
    for unit in known:
        each = _each(timed, unit)
        if len(each) and each["amount"].sum():
            some = _each(counted, unit)["amount"]
            is_known = len(some) == counted["step"].n_unique() and some.sum()
            return Workload(unit=unit, usual=float(each["amount"].sum()) / len(each), usual_ns=_mean_ns(each),
                            most_often=each["amount"].mode().max(),  # type: ignore[arg-type]
                            counted=float(some.sum()) / len(some) if is_known else None)
    return None


def _lengths_vary(steps: pl.DataFrame) -> bool:
    each = steps.drop_nulls()
    of_sample = (each["elements"] / each["samples"]).to_numpy()
    return len(each) == len(steps) > 1 and bool(of_sample.max() > (1 + UNLIKE) * of_sample.min())


def _each(steps: pl.DataFrame, unit: Unit) -> pl.DataFrame:
    """Returns `amount` and `ns` of each step: means over the ranks that know it, and over all."""
    return steps.group_by("step", maintain_order=True).agg(
        amount=pl.col(unit).mean(), ns=pl.col("duration_ns").mean()).drop_nulls("amount")


def _mean_ns(each: pl.DataFrame) -> float:
    """Returns the mean step time, robust to steps that took long for other reasons than their data.

    If few steps have the same amount of data, a line through all of them is used: the Theil-Sen estimator.
    """
    if each["amount"].n_unique() > len(each) / 2 > 1:
        return _on_line_ns(each["amount"].to_numpy(), each["ns"].to_numpy())
    alike = each.group_by("amount", maintain_order=True).agg("ns")["ns"]
    return sum(len(ns) * float(middle(ns.to_numpy()[:, None])[0]) for ns in alike) / len(each)


def _on_line_ns(amounts: Floats, ns: Floats) -> float:
    """Evaluates the Theil-Sen line, whose slope is the median over pairs of steps, at the mean amount."""
    first, second = np.triu_indices(len(amounts), 1)
    apart = amounts[first] != amounts[second]
    first, second = first[apart], second[apart]
    slope = float(np.median((ns[second] - ns[first]) / (amounts[second] - amounts[first])))
    return float(np.median(ns - slope * amounts)) + slope * float(amounts.mean())
