"""Finds ranks that became slow, or were slow from the start, by their own time, and how much longer steps became."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from distprof.arrays import Floats
from distprof.merge.watch import shifts
from distprof.merge.watch.shifts import JOINT, PART, THRESHOLD, Segment, Series
from distprof.merge.watch.view import MATERIAL, View

FROM_START = 0.035
"""A rank is slow from the start if its own time exceeds that of its peers by at least this share of a step: ranks are
never quite alike."""
TOGETHER_NS = 20e9
"""Problems of ranks that begin within 20 s, or within 100 steps, are one."""
SEEN_IN_STEPS = 0.15
"""Share of a rank's shift by which steps must have grown. They grow by less than all of it if ranks take turns in
being the last."""
LASTING = 0.5
"""A stretch is slow only if its median excess is at least this share of the mean excess; less is a burst."""
ALIKE = 0.5
"""Of ranks that became slow together, one with less than this share of the largest shift costs nothing by itself."""


@dataclass(slots=True, kw_only=True)
class Late:
    """A stretch in which a rank works longer than before, or than its peers."""

    place: int
    """Column of the rank."""
    begin: float
    """First step, as accurate as a block or a sampled step."""
    slack: float
    """Uncertainty of `begin`, in steps."""
    end: float | None
    """The first step after the stretch; None if it goes on."""
    shift_ns: float
    """Excess per step over the normal level."""
    error_ns: float
    """Standard error of the shift."""
    strength: float
    """Size of the change at `begin`, in standard errors; infinite if from the start."""
    from_start: bool
    """Whether the rank was slow from the start, compared with its peers."""


def together_steps(typical_ns: float) -> float:
    """Returns the number of steps up to which changes count as one, for steps of this duration."""
    return max(TOGETHER_NS / max(typical_ns, 1.0), 100.0)


def late_ranks(view: View) -> list[Late]:
    """Returns all stretches in which ranks are late, whether or not they make steps longer."""
    found: list[Late] = []
    for series in (view.compared, view.sampled_compared):
        if series is not None and len(series.values) >= shifts.BEFORE + shifts.LEAST:
            found += _in_series(view, series)
    return [*found, *_with_the_job(view, found)]


def _with_the_job(view: View, known: list[Late]) -> list[Late]:
    """Returns ranks that became slow when the job did, where neither change alone is certain."""
    found, near = list[Late](), together_steps(view.typical_ns)
    for place, begin, strength in _changed_together(view):
        # a change of the job that a late rank explains speaks against no other rank
        if any(abs(one.begin - begin) <= near or (
                one.place == place and one.begin <= begin + one.slack and (one.end is None or one.end > begin))
               for one in [*known, *found]):
            continue
        some = [late for series in (view.compared, view.sampled_compared, view.adjusted_samples) if series is not None
                for late in _troubles(view, series, place, shifts.segments(
                    series.values[:, place], series.weight, float(series.sigma[place]), PART))
                if abs(late.begin - begin) <= 3 * late.slack]
        if some:
            best = min(some, key=lambda late: late.slack)
            best.strength = strength
            found.append(best)
    return found


def _changed_together(view: View) -> Iterator[tuple[int, float, float]]:
    """Yields the column of each rank that changed with the job, the step, and the size of both changes together in
    standard errors; largest first."""
    every = [one for one in (view.compared, view.sampled_in_blocks, view.adjusted_samples) if one is not None]
    if not every or len(every[0].values) < shifts.BEFORE + shifts.LEAST:
        return
    strength, where = shifts.joint(view.step_times, *every)
    adjusted, also = shifts.joint(view.adjusted_step_times, *every)
    adjusted /= np.sqrt(2)  # without the work of the others, load of this rank may be all that both changes show
    surely = strength >= JOINT
    size, where = np.where(surely, strength, adjusted), np.where(surely, where, also)
    for place in sorted(np.flatnonzero(surely | (adjusted >= THRESHOLD)), key=lambda place: -size[place]):
        yield int(place), float(view.grid.blocks.first[where[place]]), float(size[place])


def _in_series(view: View, series: Series) -> list[Late]:
    found, weight = [], series.weight
    mean = (series.values * weight[:, None]).sum(axis=0) / weight.sum()
    high = mean - THRESHOLD * series.sigma / np.sqrt(weight.sum()) > 0
    # a rank that was slow for most of the time has a high mean even where it changed
    high &= mean >= FROM_START * view.typical_ns
    for place in np.flatnonzero((series.strength >= THRESHOLD) | high):
        # a change of a rank that is certainly late needs less proof: it tells since when the rank is late
        parts = shifts.segments(series.values[:, place], weight, float(series.sigma[place]),
                                PART if high[place] else THRESHOLD)
        found += _troubles(view, series, int(place), parts)
    return found


def _troubles(view: View, series: Series, place: int, parts: list[Segment]) -> list[Late]:
    """Returns runs of segments above the normal level: zero (that of peers) if the rank is slow from the start, else
    the level of the first segment."""
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
    """Returns whether values are above normal for most of the time: a burst raises only the mean."""
    return bool(np.median(values) - normal >= LASTING * (values.mean() - normal))


def _late(series: Series, place: int, parts: list[Segment], first: int, last: int, normal: float) -> Late:
    begin, end = parts[first].begin, parts[last].end
    mass = series.weight[begin:end].sum()
    mean = float((series.values[begin:end, place] * series.weight[begin:end]).sum() / mass)
    gap = float(np.diff(series.step[max(begin - 8, 0):begin + 8]).mean()) if len(series.step) > 1 else 0.0
    # the position of a change is known to within about (noise / change) ** 2 times (Hinkley 1970), and at least one
    slack = gap * (1 + min(3 * (series.sigma[place] / (mean - normal)) ** 2, 8))
    return Late(place=place, begin=float(series.step[begin]), slack=slack, from_start=first == 0,
                end=float(series.step[end]) if end < len(series.step) else None, shift_ns=mean - normal,
                error_ns=float(series.sigma[place] / np.sqrt(mass)), strength=parts[first].strength)


def clusters(view: View, found: list[Late]) -> list[list[Late]]:
    """Groups stretches that began together, with the most precise one of each rank; largest shift first."""
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


def growth(series: Series, begin: float, end: float | None) -> tuple[float, float, float, float]:
    """Returns the mean step time before a step and after it, and the standard error of each, in ns.

    Other, earlier and later changes are left out.

    Args:
        series: Step times, one column.
        begin: The step.
        end: The step at which the change is over; None if it goes on.
    """
    at, until = series.place(begin), len(series.step) if end is None else series.place(end)
    size = max(until - at, shifts.LEAST)
    earlier, later = max(at - 1 - 2 * size, 0), max(at - 1, 0)
    first, _ = _levels(series, earlier, later)[-1]
    before, error = shifts.mean_between(series.values, series.weight, first, later, series.sigma)
    _, last = _levels(series, at, max(until, at + 1))[0]
    after, error_after = shifts.mean_between(series.values, series.weight, at, last, series.sigma)
    return float(before[0]), float(after[0]), float(error[0]), float(error_after[0])


def _levels(series: Series, begin: int, end: int) -> list[tuple[int, int]]:
    """Returns begin and end of each stretch between two indices in which the series stays at one level."""
    if end - begin < shifts.BEFORE + shifts.LEAST:
        return [(begin, end)]
    return [(begin + part.begin, begin + part.end) for part in shifts.segments(
        series.values[begin:end, 0], series.weight[begin:end], float(series.sigma[0]))]


def gained_by_fixing(view: View, some: list[Late], begin: float, end: float | None) -> tuple[float, float]:
    """Returns by how much sampled steps would be shorter on average if these ranks were not late, and the standard
    error, in ns."""
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
