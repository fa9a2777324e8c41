"""How much data steps work through, as the step whose work was counted may be unlike the others."""

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
"""What tells how much it is, the first that is known; elements where samples have more or fewer of them."""
LENGTH = ("samples", "elements")
UNLIKE = 0.01
"""Difference from which on the counted step is unlike the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Of a step, means over ranks."""

    unit: Unit
    usual: float
    """In the steps that the step time is of."""
    usual_ns: float
    """How long these steps take in the mean: each as long as the `middle` of those with as much data."""
    counted: float | None
    """In the counted step; None where there is none."""
    most_often: float
    """In most of these steps; of several, the most."""

    @property
    def counted_ns(self) -> float:
        """How long a step like the counted one takes."""
        return self.usual_ns if self.counted is None else self.usual_ns * self.counted / self.usual

    @property
    def is_unlike(self) -> bool:
        """True where the counted step had more or less than the others."""
        return self.counted is not None and abs(self.counted / self.usual - 1) > UNLIKE


def workload(steps: pl.DataFrame, usual: StepTime, unit: Unit | None = None) -> Workload | None:
    """What `STEPS` tell of it, in a unit, or in the one that tells most; None where they do not."""
    timed, counted = settled(on_device(steps), usual.passes), steps.filter(pl.col("pass") == COUNT)
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
    """`amount` and `ns` of each step: means over the ranks that know it, and over all."""
    return steps.group_by("step", maintain_order=True).agg(
        amount=pl.col(unit).mean(), ns=pl.col("duration_ns").mean()).drop_nulls("amount")


def _mean_ns(each: pl.DataFrame) -> float:
    """So that a step which took long for another reason does not count.

    Where few steps have as much data as another, a line through all of them: the estimator of Theil and Sen.
    """
    if each["amount"].n_unique() > len(each) / 2 > 1:
        return _on_line_ns(each["amount"].to_numpy(), each["ns"].to_numpy())
    alike = each.group_by("amount", maintain_order=True).agg("ns")["ns"]
    return sum(len(ns) * float(middle(ns.to_numpy()[:, None])[0]) for ns in alike) / len(each)


def _on_line_ns(amounts: Floats, ns: Floats) -> float:
    """At the mean amount of a line whose slope is the median of those through two steps each."""
    first, second = np.triu_indices(len(amounts), 1)
    apart = amounts[first] != amounts[second]
    first, second = first[apart], second[apart]
    slope = float(np.median((ns[second] - ns[first]) / (amounts[second] - amounts[first])))
    return float(np.median(ns - slope * amounts)) + slope * float(amounts.mean())
