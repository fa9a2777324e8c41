"""How much data steps work through, as the step whose work was counted may be unlike the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import polars as pl

from distprof.contract.passes import COUNT
from distprof.merge.totals.step_time import StepTime, on_device, settled

Unit = Literal["samples", "forward_calls"]
UNITS: tuple[Unit, ...] = ("samples", "forward_calls")
"""What tells how much it is, the first that is known."""
UNLIKE = 0.01
"""Difference from which on the counted step is unlike the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Of a step, means over ranks."""

    unit: Unit
    usual: float
    """In the steps that the step time is of."""
    usual_ns: float
    """How long these steps take in the mean: each as long as the median of those with as much data."""
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


def workload(steps: pl.DataFrame, usual: StepTime) -> Workload | None:
    """What `STEPS` tell of it; None where they do not."""
    timed, counted = settled(on_device(steps), usual.passes), steps.filter(pl.col("pass") == COUNT)
    for unit in UNITS:
        each = _each(timed, unit)
        if len(each) and each["amount"].sum():
            some = _each(counted, unit)["amount"]
            is_known = len(some) == counted["step"].n_unique() and some.sum()
            return Workload(unit=unit, usual=float(each["amount"].sum()) / len(each), usual_ns=_mean_ns(each),
                            most_often=each["amount"].mode().max(),  # type: ignore[arg-type]
                            counted=float(some.sum()) / len(some) if is_known else None)
    return None


def _each(steps: pl.DataFrame, unit: Unit) -> pl.DataFrame:
    """`amount` and `ns` of each step: means over the ranks that know it, and over all."""
    return steps.group_by("step", maintain_order=True).agg(
        amount=pl.col(unit).mean(), ns=pl.col("duration_ns").mean()).drop_nulls("amount")


def _mean_ns(each: pl.DataFrame) -> float:
    """So that a step which took long for another reason does not count."""
    alike = each.group_by("amount", maintain_order=True).agg(ns=pl.col("ns").median(), number=pl.len())
    return float((alike["ns"] * alike["number"]).sum()) / len(each)
