"""Whether things that happen in some steps have a rhythm."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from distprof.arrays import Array, Floats, Integers

NOT_BY_CHANCE = 0.9
"""Length of the mean of the phases of all that happened, 1 where all come at the same place of the period (Rayleigh's
statistic; Mardia and Jupp 2000)."""
CERTAIN = 7.0
"""Minus logarithm of the chance that any of the periods fits to random steps (Rayleigh's test), where steps are not
known exactly."""
FEWEST = 5
FEW = 0.25
"""Steps at that place in which it did not happen, to those in which it did."""
MOST_PERIODS = 4000


def period(steps: Sequence[int] | Integers, missed: Sequence[int] | Integers = (), within: float = 0) -> float | None:
    """The period at whose same place all these steps lie: the longest, or where it is known when it did not happen the
    shortest that parts both.

    Args:
        steps: In which it happened.
        missed: In which it is known not to have happened.
        within: It happened in one of so many steps around each of them: then no period is found that is shorter than
            four times that.

    Returns:
        Steps; None where there is no rhythm.
    """
    steps, missed = np.unique(np.asarray(steps, float)), np.asarray(missed, float)
    if len(steps) < FEWEST:
        return None
    longest = (steps[-1] - steps[0]) / 2
    tried = np.arange(max(2, math.ceil(4 * within)), min(longest, MOST_PERIODS) + 1)
    if longest > MOST_PERIODS:
        tried = np.append(tried, np.geomspace(MOST_PERIODS, longest, MOST_PERIODS))
    for some in np.array_split(tried if len(missed) else tried[::-1], max(len(tried) * len(steps) // 1_000_000, 1)):
        place = np.exp(2j * np.pi * np.outer(1 / some, steps)).mean(axis=1) if len(some) else np.empty(0)
        # places that are spread evenly over a part of the circle have a mean of that length
        good = np.flatnonzero((np.abs(place) >= NOT_BY_CHANCE * np.sinc(within / some)) & (
            (within == 0) | (len(steps) * np.abs(place) ** 2 >= np.log(len(tried)) + CERTAIN)))
        for number in good:
            if _apart(float(some[number]), steps, missed, within):
                return _best(float(some[number]), some, np.abs(place))
    return None


def _best(found: float, tried: Floats, lengths: Floats) -> float:
    """The sharpest of the neighbours of a period."""
    near = np.flatnonzero(np.abs(tried / found - 1) < 0.05)
    return float(tried[near[np.argmax(lengths[near])]])


def _apart(length: float, steps: Array, missed: Array, within: float) -> bool:
    """Whether most steps at that place of the period are of them."""
    if not len(missed):
        return True
    center = np.exp(2j * np.pi * steps / length).mean()
    off = np.angle(np.exp(2j * np.pi * steps / length) / center)
    reach = np.quantile(np.abs(off), 0.9) + np.pi * within / length + 1e-6
    inside = np.abs(np.angle(np.exp(2j * np.pi * missed / length) / center)) <= reach
    return bool(inside.sum() <= FEW * len(steps))
