"""Finds when steps of the whole job became longer, and why: more work on all ranks, or slower communication."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from distprof.arrays import Floats
from distprof.merge.watch import shifts
from distprof.merge.watch.sampled_steps import Group
from distprof.merge.watch.shifts import Series
from distprof.merge.watch.view import MATERIAL, View

EXPLAINED = 0.5
"""What is said to explain longer steps must itself have grown by at least this share of the growth of step time."""
SURE = 3.5
"""Standard errors that this growth must reach; the change of step time itself is already certain."""
MOST = 1.25
"""A rank is not blamed if steps grew by more than this many times its own shift."""
UNSAMPLED_NS = 60e9
"""Watched time after which samples that are not there yet are not waited for."""
SHARE = 0.7
"""Share of the ranks that must work longer if all ranks are said to."""


@dataclass(slots=True, kw_only=True)
class Growth:
    """A stretch in which steps of the job take longer than before."""

    begin: int
    """First step of the stretch, as accurate as a block."""
    end: int | None
    """First step after it; None if it goes on."""
    slack: float
    """Uncertainty of both, in steps: the mean distance of blocks."""
    before_ns: float
    after_ns: float
    """Mean step times before and in the stretch."""
    error_ns: float
    """Standard error of their difference."""
    strength: float
    """Size of the change, in standard errors."""


def growths(view: View) -> list[Growth]:
    """Finds stretches whose step time is at least `MATERIAL` above that of the stretch before.

    One lasts until the step time falls below the middle between both levels.
    """
    series = view.step_times
    if len(series.values) < shifts.BEFORE + shifts.LEAST or series.strength[0] < shifts.THRESHOLD:
        return []
    values = series.values[:, 0]
    parts = shifts.segments(values, series.weight, float(series.sigma[0]))
    found: list[Growth] = []
    for number in range(1, len(parts)):
        before, after = parts[number - 1], parts[number]
        shift = after.mean - before.mean
        if shift < MATERIAL * before.mean:
            continue
        last = number
        while last + 1 < len(parts) and parts[last + 1].mean - before.mean > 0.5 * shift:
            last += 1
        end = int(series.step[parts[last + 1].begin]) if last + 1 < len(parts) else None
        found.append(Growth(begin=int(series.step[after.begin]), end=end, strength=after.strength,
                            slack=float(np.diff(series.step[max(after.begin - 8, 0):after.begin + 8]).mean()),
                            before_ns=before.mean, after_ns=after.mean,
                            error_ns=float(np.hypot(before.error, after.error))))
    return found


def compared(series: Series, begin: float, end: float | None) -> tuple[Floats, Floats]:
    """Returns how much each column grew between a time before `begin` and the stretch to `end`, and the standard
    error."""
    at, until = series.place(begin), len(series.step) if end is None else series.place(end)
    low = max(at - 4 * max(until - at, shifts.LEAST), 0)
    before, error = shifts.mean_between(series.values, series.weight, low, at, series.sigma)
    after, error_after = shifts.mean_between(series.values, series.weight, at, until, series.sigma)
    return after - before, np.hypot(error, error_after)


def who_grew(view: View, growth: Growth) -> tuple[str, list[int]] | None:
    """Returns whose own time grew: `all`, or `rank` with its column; None if that is not certain (yet).

    If no step was sampled for long, only step times are known, and the answer is `all`.
    """
    size, series = growth.after_ns - growth.before_ns, view.sampled_own
    if len(view.ranks) == 1:
        return "all", []
    if series is None:
        ends_ns = view.grid.blocks.end_ns
        return ("all", []) if ends_ns[-1] - ends_ns[0] >= UNSAMPLED_NS else None
    grown, error = compared(series, growth.begin, growth.end)
    if not np.isfinite(error).all():
        return None
    sure = (grown >= EXPLAINED * size) & (grown >= SURE * error)
    if sure.sum() >= SHARE * len(grown) and np.median(grown) >= EXPLAINED * size:
        return "all", []
    order = np.argsort(-grown)
    first, second = order[0], order[1]
    if sure[first] and size <= MOST * grown[first] and (
            grown[first] - grown[second] >= SURE * np.hypot(error[first], error[second])):
        return "rank", [int(first)]
    return None


def slow_groups(view: View, growth: Growth) -> tuple[list[int], float] | None:
    """Returns the groups whose data moves longer since then, and the largest such growth per step in ns; None if it
    does not explain the growth of steps."""
    series = view.moving
    if series is None:
        return None
    size = growth.after_ns - growth.before_ns
    grown, error = compared(series, growth.begin, growth.end)
    most = float(np.max(grown))
    slow = np.flatnonzero((grown >= 0.5 * most) & (grown >= SURE * error))
    if not len(slow) or most < EXPLAINED * size:
        return None
    return [int(place) for place in slow], most


def slow_from_start(view: View) -> tuple[list[int], float] | None:
    """Returns the groups whose data has always moved at least 1.5 times as long as in the median of groups of the same
    size and operation, and the largest excess per step in ns; None if there are none, or the excess does not matter."""
    series = view.moving
    if series is None or view.passes_on or len(series.values) < shifts.BEFORE + shifts.LEAST:
        return None  # stages of a pipeline may have more to communicate than others
    mean = np.median(series.values, axis=0)
    groups = view.sampled.groups
    slow, most = [], 0.0
    for place, (_, ranks, op) in enumerate(groups):
        like = [other for other, (_, others, also) in enumerate(groups)
                if other != place and also == op and len(others) == len(ranks)]
        usual = float(np.median(mean[like])) if len(like) >= 3 else np.inf
        more = mean[place] - usual
        if mean[place] >= 1.5 * usual and more >= 2 * MATERIAL * view.typical_ns and more >= shifts.THRESHOLD * (
                series.sigma[place] / np.sqrt(series.weight.sum())):
            slow.append(place)
            most = max(most, float(more))
    return (slow, most) if slow else None


def link_of(groups: list[Group], slow: Iterable[int], hosts: dict[int, str]) -> tuple[str, str] | None:
    """Returns the only pair of hosts that is in all slow groups and in no other group; None if there is no such
    pair."""
    slow = set(slow)
    held = [_pairs(ranks, hosts) for _, ranks, _ in groups]
    common = set.intersection(*(held[place] for place in slow))
    free = set[tuple[str, str]]().union(*(some for place, some in enumerate(held) if place not in slow))
    left = common - free
    return left.pop() if len(left) == 1 else None


def _pairs(ranks: Iterable[int], hosts: dict[int, str]) -> set[tuple[str, str]]:
    return set(combinations(sorted({hosts.get(rank, "") for rank in ranks}), 2))
