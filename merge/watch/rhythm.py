"""Finds the period of events that happen in some steps."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from distprof.arrays import Array, Floats, Integers

NOT_BY_CHANCE = 0.9
"""Smallest mean resultant length of the phases of all events: 1 if all have the same phase in the period (Rayleigh's
statistic; Mardia and Jupp 2000)."""
CERTAIN = 7.0
"""Minus the natural logarithm of the largest probability that any of the tried periods fits random steps (Rayleigh's
test). Applies where the steps are not known exactly."""
CHANCE = 0.01
"""The same probability where the steps are known exactly. n random phases have a resultant length of at least r, close
to 1, with a probability of the order of (1 - r)^((n - 1) / 2)."""
FEWEST = 5
"""Fewest events that can have a period."""
FEW = 0.25
"""Most steps without the event at the phase of the events, per step with it."""
MOST_PERIODS = 4000
"""Longest period up to which all whole numbers are tried; as many longer ones are tried, in geometric progression."""


def period(steps: Sequence[int] | Integers, missed: Sequence[int] | Integers = (), within: float = 0) -> float | None:
    """Finds the period in which all events have the same phase: the longest one, or, if steps without the event are
    known, the shortest one that separates these from the events.

    Args:
        steps: Steps with the event.
        missed: Steps that are known to be without the event.
        within: Number of steps within which each event is known; 0 if exactly. The period found is at least four times
            that.

    Returns:
        The period in steps; None if there is none.
    """
    steps, missed = np.unique(np.asarray(steps, float)), np.asarray(missed, float)
    if len(steps) < FEWEST:
        return None
    longest = (steps[-1] - steps[0]) / 2
    tried = np.arange(max(2, math.ceil(4 * within)), min(longest, MOST_PERIODS) + 1)
    if longest > MOST_PERIODS:
        tried = np.append(tried, np.geomspace(MOST_PERIODS, longest, MOST_PERIODS))
    least = 0.0 if within else 1 - (CHANCE / max(len(tried), 1)) ** (2 / (len(steps) - 1))
    for some in np.array_split(tried if len(missed) else tried[::-1], max(len(tried) * len(steps) // 1_000_000, 1)):
        place = np.exp(2j * np.pi * np.outer(1 / some, steps)).mean(axis=1) if len(some) else np.empty(0)
        # phases spread evenly over an arc of the circle have this mean resultant length
        good = np.flatnonzero((np.abs(place) >= max(NOT_BY_CHANCE, least) * np.sinc(within / some)) & (
            (within == 0) | (len(steps) * np.abs(place) ** 2 >= np.log(len(tried)) + CERTAIN)))
        for number in good:
            if _apart(float(some[number]), steps, missed, within):
                return _best(float(some[number]), some, np.abs(place))
    return None


def _best(found: float, tried: Floats, lengths: Floats) -> float:
    """Returns the period within 5 % of `found` whose mean resultant length is largest."""
    near = np.flatnonzero(np.abs(tried / found - 1) < 0.05)
    return float(tried[near[np.argmax(lengths[near])]])


def _apart(length: float, steps: Array, missed: Array, within: float) -> bool:
    """Returns whether few of the missed steps have the phase of the events."""
    if not len(missed):
        return True
    center = np.exp(2j * np.pi * steps / length).mean()
    off = np.angle(np.exp(2j * np.pi * steps / length) / center)
    reach = np.quantile(np.abs(off), 0.9) + np.pi * within / length + 1e-6
    inside = np.abs(np.angle(np.exp(2j * np.pi * missed / length) / center)) <= reach
    return bool(inside.sum() <= FEW * len(steps))
