"""Memory that grows for as long as one looks."""

from __future__ import annotations

import numpy as np

from distprof.arrays import Floats
from distprof.merge.watch.grid import LEVELS, Blocks

PARTS = (10, 30)
"""Stretches of the time after the warm-up; in each the lowest value counts, as what is freed later is no leak. What has
grown from the begin on shows in few, growth that began later in more."""
LEAST_PARTS = 8
"""Stretches at the end in all of which it grows. By chance alone 8 stretches are in that order once in 8! (Mann 1945,
for the largest value of his statistic)."""
EVEN = 0.25
"""Of the mean growth per stretch that each one must have."""
LEAST_NS = 120e9
LEAST_STEPS = 1000
"""Of watched time; less is warm-up."""
LEAST_BYTES = 64e6
LEAST_SHARE = 0.02
"""Of the memory at the begin of the looked-at time."""
WARM_UP = 0.33
"""Of the watched time."""
STEADY = 0.7
"""Of the mean slope that the last third must have: what slows down is a cache that fills."""


def growing(blocks: Blocks) -> dict[str, dict[int, tuple[float, int]]]:
    """For host and device, by place of the rank: bytes per hour and the step from which on it grows.

    It grows in each stretch up to the end, and as much in the last ones as in the others.
    """
    if len(blocks.first) < 4 * PARTS[0] or blocks.end_ns[-1] - blocks.end_ns[0] < LEAST_NS or (
            blocks.steps.sum() < LEAST_STEPS):
        return {}
    return {name: found for name in LEVELS if (found := _of(blocks, blocks.field(name)))}


def _of(blocks: Blocks, values: Floats) -> dict[int, tuple[float, int]]:
    found: dict[int, tuple[float, int]] = {}
    for parts in PARTS:
        for place, begun in _in_parts(blocks, values, parts).items():
            found.setdefault(place, begun)
    return found


def _in_parts(blocks: Blocks, values: Floats, parts: int) -> dict[int, tuple[float, int]]:
    time = blocks.end_ns - blocks.end_ns[0]
    bounds = np.searchsorted(time, np.linspace(WARM_UP, 1, parts + 1) * time[-1])
    if (np.diff(bounds) < 2).any():
        return {}
    lowest = np.minimum.reduceat(values[:bounds[-1] + 1], bounds[:-1], axis=0)
    found = {}
    for place in np.flatnonzero(lowest[-1] - lowest.min(axis=0) >= LEAST_BYTES).tolist():
        first = _grows_from(lowest[:, place])
        if first is not None:
            slope = float(np.median(np.diff(lowest[first:, place]))) / (time[-1] * (1 - WARM_UP) / parts)
            begun = _begin(blocks, values[:, place], float(lowest[0, place]), slope, time) if not first else (
                _later(blocks, lowest[first:, place], slope, float(time[bounds[-2]])))
            found[place] = slope * 3600e9, begun
    return found


def _grows_from(lowest: Floats) -> int | None:
    """The first stretch from which on it grows evenly; None where it does not."""
    steps = np.diff(lowest)
    for first in range(len(lowest) - LEAST_PARTS + 1):
        later = steps[first:]
        third = len(later) // 3
        if later.min() > 0 and later.min() >= EVEN * later.mean() and (
                later.sum() >= max(LEAST_BYTES, LEAST_SHARE * lowest[first])) and (
                later[-third:].mean() >= STEADY * later.mean()):
            return first
    return None


def _begin(blocks: Blocks, values: Floats, level: float, slope: float,
           time: Floats) -> int:
    """The step at which a line with that slope (bytes per ns) leaves what there was before."""
    middle = np.searchsorted(time, WARM_UP * time[-1])
    line = level + slope * (time - time[middle])
    below = np.flatnonzero(values[:middle] > line[:middle] + 0.25 * slope * time[-1])
    return int(blocks.first[below[-1] + 1 if len(below) else 0])


def _later(blocks: Blocks, lowest: Floats, slope: float, last: float) -> int:
    """The step at which the line through the last stretch, which begins at `last`, has the height of the first."""
    at = last - (lowest[-1] - lowest[0]) / slope
    place = int(np.searchsorted(blocks.end_ns - blocks.end_ns[0], at))
    return int(blocks.first[min(place, len(blocks.first) - 1)])
