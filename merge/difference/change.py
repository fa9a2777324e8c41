"""The change of a quantity: its size, its confidence interval, and whether it is more than noise."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from distprof.arrays import Floats
from distprof.merge.difference.samples import Noise, Samples, Statistic, quantile, standard_errors, two_sided

LEVEL = 0.01
"""Significance level: p below which something has changed; intervals have confidence 1 - this."""
WIDE = 1.0
"""An interval whose half width exceeds this many times the measured value is not reported."""
UNEVEN = 0.5
"""Standard deviation of the effect of a common factor on single items, as a share of the effect."""
Verdict = Literal["changed", "noise", "same", "unknown", "added", "removed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Change of one quantity."""

    base: float | None
    new: float | None
    low: float | None = None
    """Ends of the confidence interval of the difference; None if its scatter is unknown."""
    high: float | None = None
    p: float | None = None
    """Probability of a difference this large between two runs of one program."""

    @property
    def difference(self) -> float | None:
        return None if self.base is None or self.new is None else self.new - self.base

    @property
    def ratio(self) -> float | None:
        """The difference as a share of the base; None if the base is 0 or unknown."""
        return self._of_base(self.difference)

    @property
    def low_ratio(self) -> float | None:
        return self._of_base(self.low)

    @property
    def high_ratio(self) -> float | None:
        return self._of_base(self.high)

    def _of_base(self, value: float | None) -> float | None:
        return None if value is None or not self.base else value / abs(self.base)

    @property
    def is_exact(self) -> bool:
        """True for quantities that are counted, not measured."""
        return self.low is not None and self.low == self.high

    @property
    def verdict(self) -> Verdict:
        """What can be said about the change."""
        if self.base is None or self.new is None:
            return "unknown" if self.base is None and self.new is None else "added" if self.base is None else "removed"
        if self.is_exact:
            return "same" if self.base == self.new else "changed"
        if self.p is None:
            return "unknown"
        return "changed" if self.p < LEVEL else "noise"

    def to_json(self) -> dict[str, Any]:
        names = ("base", "new", "difference", "ratio", "low", "high", "low_ratio", "high_ratio", "p", "verdict")
        values = {name: getattr(self, name) for name in names}
        return {name: None if isinstance(value, float) and not math.isfinite(value) else value
                for name, value in values.items()}


def exact(base: float | None, new: float | None) -> Change:
    """Returns the change of a counted quantity, which either differs or does not."""
    difference = None if base is None or new is None else new - base
    return Change(base=base, new=new, low=difference, high=difference, p=None)


def inverse(change: Change, of: Change | None) -> Change:
    """Returns the change of a rate, whose error is that of the time in its denominator."""
    if change.difference is None or of is None or of.low_ratio is None or of.high_ratio is None or of.ratio is None:
        return replace(change, low=None, high=None, p=None)
    assert change.base is not None
    low, high = ((1 + of.ratio) / (1 + end) if end > -1 else math.inf for end in (of.high_ratio, of.low_ratio))
    assert change.new is not None
    ends = sorted(change.new * one - change.base for one in (low, high))
    return replace(change, low=ends[0], high=ends[1], p=of.p)


def between_runs(base: Sequence[float], new: Sequence[float]) -> Change:
    """Returns the change of a number that each run has once; with only two runs its scatter is unknown."""
    if len(base) + len(new) <= 2:
        return Change(base=base[0], new=new[0])
    values = np.array([[value] for value in (*base, *new)])
    errors, freedom = _between_runs(values, len(base))
    return _change(float(np.mean(base)), float(np.mean(new)), errors[0], freedom[0], 1)


def changes(base: Sequence[Samples], new: Sequence[Samples], statistic: Statistic, noise: Noise, *,
            scales: Floats | None = None, waits: Sequence[Hashable] = (),
            step_ns: Sequence[float] | None = None, num_tables: int = 1) -> dict[Hashable, Change]:
    """Returns the changes of all items; intervals and p are corrected for testing all of them (Bonferroni).

    Args:
        base: Samples of each run, with the same items.
        new: Likewise.
        statistic: Statistic over the steps.
        noise: How much runs differ by themselves.
        scales: For each run of both sides, the factor by which its times are divided first.
        waits: Items that last as long as others take: they vary like the step, not like themselves.
        step_ns: The mean step of each run, if there are such items.
        num_tables: Number of tables shown together: the correction covers the items of all.
    """
    runs = [*base, *new]
    items, number = runs[0].items, max(len(runs[0].items), 1) * num_tables
    factors = np.ones(len(runs)) if scales is None else np.asarray(scales, float)
    steps = [one.by_step / factor for one, factor in zip(runs, factors, strict=True)]
    values = np.stack([statistic(one) for one in steps])
    if noise.is_measured:
        errors, freedom = _between_runs(values, len(base))
    else:
        vary = np.abs(values)
        for column, item in enumerate(items):
            if step_ns is not None and item in waits:
                vary[:, column] = np.maximum(vary[:, column], step_ns)
        queued = np.array(noise.by_queue)[:, None] * vary
        # a machine affects all items, but not each to the same degree
        uneven = UNEVEN * np.abs(factors - 1)[:, None] * values
        each = [standard_errors(one, statistic, run.alike) for one, run in zip(steps, runs, strict=True)]
        errors, freedom = _within_runs(each, (noise.assumed * values) ** 2 + queued ** 2 + uneven ** 2)
    before, after = values[:len(base)].mean(axis=0), values[len(base):].mean(axis=0)
    return {item: _change(before[index], after[index], errors[index], freedom[index], number)
            for index, item in enumerate(items)}


def _between_runs(values: Floats, num_base: int) -> tuple[Floats, Floats]:
    """Returns errors of the difference from the scatter of runs, with its degrees of freedom."""
    sides = values[:num_base], values[num_base:]
    freedom = len(values) - 2
    squares = sum(((side - side.mean(axis=0)) ** 2).sum(axis=0) for side in sides)
    return (np.sqrt(squares / freedom * (1 / len(sides[0]) + 1 / len(sides[1]))),
            np.full(values.shape[1], float(freedom)))


def _within_runs(scatter: Sequence[tuple[Floats, float]], assumed: Floats) -> tuple[Floats, Floats]:
    """Combines the errors of each run with the squares of assumed errors between runs, shape (runs, items)."""
    squares, scattered = assumed.sum(axis=0), np.zeros(assumed.shape[1])
    for errors, freedom in scatter:
        squares = squares + errors ** 2
        scattered += errors ** 4 / freedom if freedom > 0 else np.inf
    with np.errstate(divide="ignore", invalid="ignore"):  # Welch-Satterthwaite: assumed errors are taken as known
        freedom_of = np.where(scattered > 0, squares ** 2 / scattered, np.inf)
    return np.sqrt(squares), np.nan_to_num(freedom_of, nan=0.0, posinf=1e9)


def _change(base: float, new: float, error: float, freedom: float, number: int) -> Change:
    base, new, error = float(base), float(new), float(error)
    difference = new - base
    if not math.isfinite(error) or freedom < 1:
        return Change(base=base, new=new)
    beyond = abs(difference) / error if error else (math.inf if difference else 0.0)
    half = quantile(LEVEL / number, freedom) * error if error else 0.0
    if half > WIDE * max(abs(base), abs(new)):  # few steps, or much scatter: the interval says nothing
        return Change(base=base, new=new)
    low = difference - half
    # measured values are never below 0
    return Change(base=base, new=new, low=max(low, -base) if base > 0 and new >= 0 else low, high=difference + half,
                  p=min(number * two_sided(beyond, freedom), 1.0))
