"""Ranks that became slow, or were slow from the start: found by their own time, confirmed by longer steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distprof.arrays import Floats
from distprof.merge.watch import shifts
from distprof.merge.watch.shifts import JOINT, THRESHOLD, Segment, Series
from distprof.merge.watch.view import MATERIAL, View

PART = 4.0
"""Standard errors that a rank must show by itself where the job grew at the same time."""
FROM_START = 0.035
"""Of a step, by which a rank must be above its peers where nothing changed: ranks are never quite alike."""
TOGETHER_NS = 20e9
"""Troubles of ranks that begin within it, or within 100 steps, are one."""
SEEN_IN_STEPS = 0.15
"""Of a rank's shift that steps must show. Less than all where ranks take turns in being the last."""
LASTING = 0.5
"""Of the mean shift that the median must show."""
ALIKE = 0.5
"""Of the largest shift: a rank with less of one that began at the same time costs nothing by itself."""


@dataclass(slots=True, kw_only=True)
class Late:
    """A stretch in which a rank works longer than before, or than its peers."""

    place: int
    """Of the rank."""
    begin: float
    """Step; that of a block or a sample."""
    slack: float
    """The begin lies within so many steps."""
    end: float | None
    """The first step after it."""
    shift_ns: float
    error_ns: float
    strength: float
    from_start: bool


def together_steps(typical_ns: float) -> float:
    """Changes that are no more steps apart are one, where steps take so long."""
    return max(TOGETHER_NS / max(typical_ns, 1.0), 100.0)


def late_ranks(view: View) -> list[Late]:
    """All of them, without looking at what steps cost."""
    found: list[Late] = []
    for series in (view.compared, view.sampled_compared):
        if series is not None and len(series.values) >= shifts.BEFORE + shifts.LEAST:
            found += _in_series(view, series)
    return [*found, *_with_the_job(view, found)]


def _with_the_job(view: View, known: list[Late]) -> list[Late]:
    """Ranks that became slow when the job did, where neither alone is certain."""
    every = [one for one in (view.compared, view.sampled_in_blocks) if one is not None]
    if not every or len(every[0].values) < shifts.BEFORE + shifts.LEAST:
        return []
    strength, where = shifts.joint(view.step_times, *every)
    found = []
    for place in np.flatnonzero(strength >= JOINT):
        begin = float(view.grid.blocks.first[where[place]])
        if any(one.place == place and one.begin <= begin + one.slack and (one.end is None or one.end > begin)
               for one in known):
            continue
        some = [late for series in (view.compared, view.sampled_compared) if series is not None
                for late in _troubles(view, series, int(place), shifts.segments(
                    series.values[:, place], series.weight, float(series.sigma[place]), PART))
                if abs(late.begin - begin) <= 3 * late.slack]
        if some:
            best = min(some, key=lambda late: late.slack)
            best.strength = float(strength[place])
            found.append(best)
    return found


def _in_series(view: View, series: Series) -> list[Late]:
    found, weight = [], series.weight
    mean = (series.values * weight[:, None]).sum(axis=0) / weight.sum()
    high = mean - THRESHOLD * series.sigma / np.sqrt(weight.sum()) > 0
    # a rank that was slow for most of the time has a high mean even where it changed
    high &= mean >= FROM_START * view.typical_ns
    for place in np.flatnonzero((series.strength >= THRESHOLD) | high):
        # of one that is late for certain, a change is less in need of proof: it was late since then, not for ever
        parts = shifts.segments(series.values[:, place], weight, float(series.sigma[place]),
                                PART if high[place] else THRESHOLD)
        found += _troubles(view, series, int(place), parts)
    return found


def _troubles(view: View, series: Series, place: int, parts: list[Segment]) -> list[Late]:
    """Runs of stretches above what is normal: zero against peers, else the level of the first stretch."""
    typical, first = view.typical_ns, parts[0]
    from_start = bool(view.has_peers[place]) and first.mean - THRESHOLD * first.error > 0 and (
        first.mean >= FROM_START * typical)
    normal = 0.0 if from_start else first.mean
    above = [part.mean - normal >= MATERIAL * typical and (number > 0 or from_start)
             for number, part in enumerate(parts)]
    found, number = [], 0
    while number < len(parts):
        if not above[number]:
            number += 1
            continue
        last = number
        while last + 1 < len(parts) and above[last + 1]:
            last += 1
        if series is not view.compared or _lasts(series.values[parts[number].begin:parts[last].end, place], normal):
            found.append(_late(series, place, parts, number, last, normal))
        number = last + 1
    return found


def _lasts(values: Floats, normal: float) -> bool:
    """Whether it is above for most of the time: a burst raises the mean alone."""
    return bool(np.median(values) - normal >= LASTING * (values.mean() - normal))


def _late(series: Series, place: int, parts: list[Segment], first: int, last: int, normal: float) -> Late:
    begin, end = parts[first].begin, parts[last].end
    mass = series.weight[begin:end].sum()
    mean = float((series.values[begin:end, place] * series.weight[begin:end]).sum() / mass)
    gap = float(np.diff(series.step[max(begin - 8, 0):begin + 8]).mean()) if len(series.step) > 1 else 0.0
    # the place of a change is known to about (noise / change) ** 2 (Hinkley 1970), and to no less than one time
    slack = gap * (1 + min(3 * (series.sigma[place] / (mean - normal)) ** 2, 8))
    return Late(place=place, begin=float(series.step[begin]), slack=slack, from_start=first == 0,
                end=float(series.step[end]) if end < len(series.step) else None, shift_ns=mean - normal,
                error_ns=float(series.sigma[place] / np.sqrt(mass)), strength=parts[first].strength)


def clusters(view: View, found: list[Late]) -> list[list[Late]]:
    """Those that began together, the strongest of each rank."""
    near = together_steps(view.typical_ns)
    every: list[list[Late]] = []
    for one in sorted(found, key=lambda late: (not late.from_start, late.begin)):
        home = next((some for some in every if some[0].from_start == one.from_start
                     and abs(some[0].begin - one.begin) <= near + one.slack), None)
        if home is None:
            every.append([one])
        elif (same := next((late for late in home if late.place == one.place), None)) is None:
            home.append(one)
        elif one.slack < same.slack:
            home[home.index(same)] = one
    return [_leading(some) for some in every]


def _leading(some: list[Late]) -> list[Late]:
    most = max(one.shift_ns for one in some)
    return sorted((one for one in some if one.shift_ns >= ALIKE * most), key=lambda one: -one.shift_ns)


def growth(view: View, begin: float, end: float | None) -> tuple[float, float, float, float]:
    """How much steps grew at that step: before, after, and the error of each.

    Other changes, earlier and later ones, are left out.
    """
    series = view.step_times
    at, until = series.place(begin), len(series.step) if end is None else series.place(end)
    size = max(until - at, shifts.LEAST)
    earlier, later = max(at - 1 - 2 * size, 0), max(at - 1, 0)
    first, _ = _levels(series, earlier, later)[-1]
    before, error = shifts.mean_between(series.values, series.weight, first, later, series.sigma)
    _, last = _levels(series, at, max(until, at + 1))[0]
    after, error_after = shifts.mean_between(series.values, series.weight, at, last, series.sigma)
    return float(before[0]), float(after[0]), float(error[0]), float(error_after[0])


def _levels(series: Series, begin: int, end: int) -> list[tuple[int, int]]:
    """Begin and end of each stretch between two places in which the series stays on a level."""
    if end - begin < shifts.BEFORE + shifts.LEAST:
        return [(begin, end)]
    return [(begin + part.begin, begin + part.end) for part in shifts.segments(
        series.values[begin:end, 0], series.weight[begin:end], float(series.sigma[0]))]


def gained_by_fixing(view: View, some: list[Late], begin: float, end: float | None) -> tuple[float, float]:
    """Mean of what a sampled step would be shorter if these ranks were not late, and its standard error."""
    sampled = view.sampled
    low = int(np.searchsorted(sampled.step, begin))
    high = len(sampled.step) if end is None else int(np.searchsorted(sampled.step, end))
    own: Any = sampled.own[low:high]
    if not len(own):
        return np.nan, np.inf
    better = own.copy()
    for one in some:
        better[:, one.place] -= one.shift_ns
    gain = np.nanmax(own, axis=1) - np.nanmax(better, axis=1)
    return float(gain.mean()), float(gain.std() / np.sqrt(len(gain)) + 1e-9)
