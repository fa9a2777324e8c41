"""Fits the line between two clocks into bounds on their difference.

The true difference keeps all bounds. So it is among the lines that keep all of them (a convex set), and the extent of
this set is the uncertainty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from distprof.arrays import Floats, Integers
from distprof.merge.clock.model import Alignment, RankClock

MAX_DRIFT_PPM = 1000.0
"""Two clocks differ by at most this drift: quartz by 100 ppm, and slewing (adjtimex) adds at most 500 ppm."""
NS_PER_S_PER_PPM = 1000.0
MAX_PAIRS_OF = 400
"""Number of points that Theil-Sen pairs up; more are thinned out evenly."""

Bound = tuple[int, int]
"""A time on the clock to be corrected, and the least (or largest) offset to be added to it; ns."""
Bounds = Sequence[Bound] | Integers
"""A sequence of bounds; as an array, one row each."""
MOST_LOOPED = 64
"""Points are thinned out before their hull is computed if there are more than this."""
WORTH = 0.05
"""Another round of thinning has to remove at least this fraction of the points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A line and its error bound."""

    line: RankClock
    uncertainty_ns: int
    """Error bound of the line within the window."""
    drift_uncertainty_ppm: float
    excess_ns: int
    """How much the bounds had to be relaxed for a line to pass; 0 if they are consistent."""

    window: tuple[int, int] = (0, 0)

    def widened(self, more_ns: int) -> Fit:
        """Returns the same line with a larger uncertainty."""
        return replace(self, uncertainty_ns=self.uncertainty_ns + more_ns)

    def through(self, peer: Alignment, *, number: int) -> Alignment:
        """Composes the line with the peer's line to the common clock; errors add up. `number` is that of the new
        clock."""
        behind_ns = (peer.uncertainty_ns or 0) + self._outside_ns(peer)
        return Alignment(line=self.line.then(peer.line), clock=number, window=self.window,
                         uncertainty_ns=self.uncertainty_ns + behind_ns + math.ceil(behind_ns * MAX_DRIFT_PPM * 1e-6),
                         drift_uncertainty_ppm=self.drift_uncertainty_ppm + (peer.drift_uncertainty_ppm or 0.0))


    def _outside_ns(self, peer: Alignment) -> int:
        """Returns the additional error of the peer's line where this window extends beyond the peer's."""
        if peer.window is None:
            return 0
        begin, end = (self.line.shift(at_ns) for at_ns in self.window)
        outside_ns = max(peer.window[0] - begin, end - peer.window[1], 0)
        return math.ceil(outside_ns * (peer.drift_uncertainty_ppm or 0.0) * 1e-6)


def fit_line(lower: Bounds, upper: Bounds, *, window: tuple[int, int], points: Bounds = ()) -> Fit:
    """Fits the line between two clocks.

    Args:
        lower: Least offsets at some times.
        upper: Largest offsets at some times.
        window: First and last time for which the uncertainty has to hold.
        points: Estimated offsets; the line follows them (Theil-Sen) as far as the bounds allow. Without points it is in
            the middle of what is possible.

    Raises:
        ValueError: There is no lower, or no upper bound.
    """
    if not len(lower) or not len(upper):
        raise ValueError("expected bounds on both sides")
    begin, base = window[0], int(lower[0][1])
    corridor = _Corridor.around(_hull(_local(lower, begin, base), sign=1), _hull(_local(upper, begin, base), sign=-1))
    times = [0.0, (window[1] - begin) / 1e9]
    extents = [corridor.extent(time) for time in times]
    wanted = [(low + high) / 2 for low, high in extents]
    if len(points):
        slope, start = corridor.nearest(*_theil_sen(_local(points, begin, base)))
        wanted = [start + slope * time for time in times]
    # two lines differ most at an end of the window
    worst = max(max(high - value, value - low) for value, (low, high) in zip(wanted, extents, strict=True))
    drift = (wanted[1] - wanted[0]) / times[1] / NS_PER_S_PER_PPM if times[1] > 0 else 0.0
    slowest, fastest = (float(corridor.drifts[end]) / NS_PER_S_PER_PPM for end in (0, -1))
    return Fit(line=RankClock(offset_ns=base + round(wanted[0]), drift_ppm=drift, reference_ns=begin),
               uncertainty_ns=math.ceil(worst + 2 * corridor.excess) + 2,  # 2 for rounding to whole ns at both ends
               drift_uncertainty_ppm=max(fastest - drift, drift - slowest, 0.0), excess_ns=math.ceil(corridor.excess),
               window=window)


def _local(bounds: Bounds, begin: int, base: int) -> Floats:
    """Converts to seconds since `begin` and ns above `base`, which are small enough for doubles."""
    whole = np.asarray(bounds, np.int64)
    return np.stack([(whole[:, 0] - begin) / 1e9, (whole[:, 1] - base).astype(np.float64)], axis=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Corridor:
    """All lines between the bounds."""

    lower: Floats
    upper: Floats
    drifts: Floats
    """Breakpoints of the drift, ns/s, from the smallest to the largest possible one; all is linear in between."""
    excess: float

    @classmethod
    def around(cls, lower: Floats, upper: Floats) -> _Corridor:
        limit = MAX_DRIFT_PPM * NS_PER_S_PER_PPM
        drifts = np.unique(np.clip(np.concatenate([_slopes(lower), _slopes(upper), [-limit, limit]]), -limit, limit))
        room = _room(lower, upper, drifts)
        excess = max(-float(room.max()) / 2, 0.0)
        widened = np.array([0.0, excess * (1 + 1e-12)])
        return cls(lower=lower - widened, upper=upper + widened, drifts=_possible(drifts, room + 2 * excess),
                   excess=excess)

    def extent(self, time: float) -> tuple[float, float]:
        """Returns the lowest and the highest value of the lines at a time."""
        low = (self.lower[:, 1, None] + np.outer(time - self.lower[:, 0], self.drifts)).max(axis=0)
        high = (self.upper[:, 1, None] + np.outer(time - self.upper[:, 0], self.drifts)).min(axis=0)
        return float(low.min()), float(high.max())

    def nearest(self, slope: float, start: float) -> tuple[float, float]:
        """Returns the line itself, or the nearest possible one."""
        slope = min(max(slope, float(self.drifts[0])), float(self.drifts[-1]))
        low = float((self.lower[:, 1] - self.lower[:, 0] * slope).max())
        high = float((self.upper[:, 1] - self.upper[:, 0] * slope).min())
        return slope, min(max(start, low), high)


def _room(lower: Floats, upper: Floats, drifts: Floats) -> Floats:
    """Returns how far a line of each drift can be moved up and down; concave in the drift."""
    low = (lower[:, 1, None] - np.outer(lower[:, 0], drifts)).max(axis=0)
    high = (upper[:, 1, None] - np.outer(upper[:, 0], drifts)).min(axis=0)
    return np.asarray(high - low)


def _possible(drifts: Floats, room: Floats) -> Floats:
    """Returns the drifts with room, and the drifts at both ends at which room becomes zero."""
    inside = np.flatnonzero(room >= 0)
    if not len(inside):  # due to rounding; take the one with the most room
        return drifts[[int(room.argmax())]]
    first, last = int(inside[0]), int(inside[-1])
    ends = [_zero(drifts, room, first, first - 1)] if first else []
    others = [_zero(drifts, room, last, last + 1)] if last + 1 < len(drifts) else []
    return np.concatenate([ends, drifts[first:last + 1], others])


def _zero(drifts: Floats, room: Floats, inside: int, outside: int) -> float:
    share = room[inside] / (room[inside] - room[outside])
    return float(drifts[inside] + share * (drifts[outside] - drifts[inside]))


def _slopes(hull: Floats) -> Floats:
    return np.diff(hull[:, 1]) / np.diff(hull[:, 0])


def _hull(points: Floats, *, sign: int) -> Floats:
    """Returns the upper (sign 1) or lower (-1) convex hull, with unique times, by Andrew's monotone chain."""
    order = np.argsort(points[:, 0], kind="stable")
    times = points[order, 0]
    first = np.flatnonzero(np.append(True, np.diff(times) > 0))
    values = (np.maximum if sign > 0 else np.minimum).reduceat(points[order, 1], first)
    kept: list[tuple[float, float]] = []
    for time, value in zip(*_thinned(times[first], values, sign), strict=True):
        while len(kept) > 1 and sign * _turn(kept[-2], kept[-1], (time, value)) >= 0:
            kept.pop()
        kept.append((time, value))
    return np.array(kept)


def _thinned(time: Floats, value: Floats, sign: int) -> tuple[list[float], list[float]]:
    """Removes most points below (sign 1) or above (-1) the line between their neighbours: of thousands, few remain."""
    while len(time) > MOST_LOOPED:
        run, rise = np.diff(time), np.diff(value)
        turn = run[:-1] * rise[1:] - rise[:-1] * run[1:]
        outside = np.concatenate(([True], sign * turn < 0, [True]))
        if outside.sum() > len(time) * (1 - WORTH):
            break
        time, value = time[outside], value[outside]
    return time.tolist(), value.tolist()


def _turn(one: tuple[float, float], two: tuple[float, float], three: tuple[float, float]) -> float:
    """Returns the cross product of two segments: positive if the path over three points turns left."""
    return (two[0] - one[0]) * (three[1] - one[1]) - (two[1] - one[1]) * (three[0] - one[0])


def _theil_sen(points: Floats) -> tuple[float, float]:
    """Returns the Theil-Sen line: the median slope of all pairs, and the start with as many points above as below.

    Sen, Journal of the American Statistical Association 63, 1968.
    """
    thinned = points[np.linspace(0, len(points) - 1, min(len(points), MAX_PAIRS_OF)).astype(int)]
    one, two = np.triu_indices(len(thinned), k=1)
    apart = thinned[two, 0] - thinned[one, 0]
    slopes = (thinned[two, 1] - thinned[one, 1])[apart != 0] / apart[apart != 0]
    slope = float(np.median(slopes)) if len(slopes) else 0.0
    start = float(np.median(points[:, 1] - slope * points[:, 0]))
    scatter = float(np.median(np.abs(points[:, 1] - slope * points[:, 0] - start)))
    if abs(slope) * float(np.ptp(points[:, 0])) <= 2 * scatter:  # the time is too short to tell a drift from noise
        return 0.0, float(np.median(points[:, 1]))
    return slope, start
