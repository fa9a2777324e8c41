"""Memory that grows for as long as one looks."""

from __future__ import annotations

from typing import Any

import numpy as np

from distprof.merge.watch.grid import LEVELS, Blocks

PARTS = 10
"""Stretches of the time after the warm-up; in each the lowest value counts, as what is freed later is no leak."""
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

    All differences of neighbouring stretches must be positive: by chance alone, of 10 stretches in any order, that
    happens once in 10! (Mann 1945, for the largest value of his statistic).
    """
    if len(blocks.first) < 4 * PARTS or blocks.end_ns[-1] - blocks.end_ns[0] < LEAST_NS or (
            blocks.steps.sum() < LEAST_STEPS):
        return {}
    return {name: found for name in LEVELS if (found := _of(blocks, blocks.field(name)))}


def _of(blocks: Blocks, values: Any) -> dict[int, tuple[float, int]]:
    time = blocks.end_ns - blocks.end_ns[0]
    bounds = np.searchsorted(time, np.linspace(WARM_UP, 1, PARTS + 1) * time[-1])
    if (np.diff(bounds) < 2).any():
        return {}
    lowest = np.minimum.reduceat(values[:bounds[-1] + 1], bounds[:-1], axis=0)
    steps = np.diff(lowest, axis=0)
    grown = lowest[-1] - lowest[0]
    last = lowest[-1] - lowest[-1 - PARTS // 3]
    with np.errstate(invalid="ignore"):
        good = (steps > 0).all(axis=0) & (grown >= np.maximum(LEAST_BYTES, LEAST_SHARE * lowest[0])) & (
            last >= STEADY * grown * (PARTS // 3) / (PARTS - 1))
    slope = np.median(steps, axis=0) / (time[-1] * (1 - WARM_UP) / PARTS / 3600e9)
    return {int(place): (float(slope[place]), _begin(
        blocks, values[:, place], lowest[0, place], float(slope[place]), time))
            for place in np.flatnonzero(good)}


def _begin(blocks: Blocks, values: Any, level: float, slope: float, time: Any) -> int:
    """The step at which a line with that slope leaves what there was before."""
    middle = np.searchsorted(time, WARM_UP * time[-1])
    line = level + slope * (time - time[middle]) / 3600e9
    below = np.flatnonzero(values[:middle] > line[:middle] + 0.25 * slope * time[-1] / 3600e9)
    return int(blocks.first[below[-1] + 1 if len(below) else 0])
