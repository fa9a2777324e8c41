"""The step at which a problem began or ended, from rows around it."""

from __future__ import annotations

from typing import Any

import numpy as np

from distprof.arrays import Floats
from distprof.merge.watch import shifts
from distprof.merge.watch.grid import FIELDS
from distprof.merge.watch.view import View

AROUND = 3.0
"""Times the slack of an estimate, on both sides."""
OUTSIDE = 4
"""Rows at both ends that are not searched: they show the levels."""
AT_END = 2
"""Rows from an end of the search."""
SEARCHES = 6
BETWEEN = 0.4
"""Part of a shift by which rows in front of it may be above what is normal."""
LEVEL = 96
"""Rows from which the levels before and after are taken."""


def refined(view: View, begin: float, slack: float, place: int | None) -> tuple[float, float]:
    """The step of a change near `begin`, and how many steps a row has there.

    Where it is found at an end of the rows that are searched, it may lie beyond: the search goes on from there.

    Args:
        view: Of the job.
        begin: About where it is.
        slack: It is within so many steps.
        place: Of the rank that changed; None where all did.
    """
    for _ in range(SEARCHES):
        found, size, is_at_end = _searched(view, begin, slack, place)
        if not is_at_end or found == begin:
            break
        begin, slack = found, 2 * slack
    return found, size


def _searched(view: View, begin: float, slack: float, place: int | None) -> tuple[float, float, bool]:
    """The same within the slack, and whether that is at an end of it."""
    grid = view.grid
    if len(grid.first) < 2 * OUTSIDE or begin + AROUND * slack < grid.first[0]:
        return begin, slack, False
    low = max(int(np.searchsorted(grid.first, begin - AROUND * slack)), OUTSIDE)
    high = min(int(np.searchsorted(grid.first, begin + AROUND * slack, side="right")), len(grid.first) - OUTSIDE)
    if high <= low:
        return begin, slack, False
    signals = signals_of(view, place, max(low - LEVEL, 0), min(high + LEVEL, len(grid.first)))
    inside = slice(low - max(low - LEVEL, 0), high - max(low - LEVEL, 0))
    middle = (inside.start + inside.stop) // 2
    for _ in range(2):
        gap = 0 if _ else (inside.stop - inside.start) // 2
        before, after = _level(signals[:max(middle - gap, OUTSIDE)][-LEVEL:]), _level(signals[min(
            middle + gap, len(signals) - OUTSIDE):][:LEVEL])
        sigma = _sigma(signals)
        middle = inside.start + shifts.turning_point(signals[inside], before, after, sigma)
    is_at_end = not inside.start + AT_END < middle < inside.stop - AT_END
    at = max(low - LEVEL, 0) + middle
    at = min(at, len(grid.first) - 1)
    return _inside_row(view, at, signals, middle, before, after, sigma), float(grid.count[at]), is_at_end


def began(view: View, place: int, shift_ns: float) -> float | None:
    """The step from which on a rank is slow that seems so from the start: what is early is in one block with what
    follows. None where its first rows are like the others.

    Args:
        view: Of the job.
        place: Of the rank.
        shift_ns: By how much it is slow.
    """
    if view.grid.blocks.first[0] != view.grid.first[0]:
        return None  # its first rows are forgotten
    signals = signals_of(view, place, 0, min(LEVEL, len(view.grid.first)))
    changes = signals[:, -1:]
    if len(changes) < 2 * OUTSIDE:
        return None
    after = _level(changes[len(changes) // 2:])
    before, sigma = after - shift_ns, _sigma(changes)
    middle = shifts.turning_point(changes, before, after, sigma)
    if middle < OUTSIDE or np.nanmedian(changes[:middle]) - before[0] > BETWEEN * shift_ns:
        return None
    return _inside_row(view, min(middle, len(changes) - 1), changes, middle, before, after, sigma)


def _inside_row(view: View, at: int, signals: Floats, middle: int, before: Floats, after: Floats,
                sigma: Floats) -> float:
    """A row in front of the new level that lies between both levels was hit by the change in its middle."""
    first, count = view.grid.first, view.grid.count
    if not 1 <= middle < len(signals):
        return float(first[at])
    weight = ((after - before) / sigma) ** 2
    share = np.clip((signals[[middle - 1, middle]] - before) / np.where(after == before, 1, after - before), 0, 1)
    part = np.nansum(share * weight, axis=1) / max(float(np.nansum(weight)), 1e-9)
    return float(round(first[at] + (1 - part[1]) * count[at] - part[0] * count[at - 1]))


def _level(some: Floats) -> Floats:
    return np.nanmedian(some, axis=0)


def _sigma(signals: Floats) -> Any:
    size = np.abs(np.diff(signals, axis=0))
    return np.maximum(1.4826 * np.nanmedian(size, axis=0) / np.sqrt(2), 1.0)


def signals_of(view: View, place: int | None, low: int, high: int) -> Any:
    """Series of (rows, signals) that change with it: step time and, of a rank, its own phases against its peers."""
    rows = view.grid.rows[low:high].astype(float)
    span = np.median(shifts.filled(rows[:, :, FIELDS.index("span_ns")]), axis=1)
    names = view.own_phases
    if place is None or not names or rows.shape[1] < 2:
        return span[:, None]
    own = shifts.filled(sum(rows[:, :, FIELDS.index(name)] for name in names))
    others = np.median(np.delete(own, place, axis=1), axis=1)
    return np.stack([_without(span, others), own[:, place] - others], axis=1)


def _without(span: Floats, others: Floats) -> Floats:
    """Step time without what the work of the other ranks explains: the regression of differences, which no step bends
    (control variates)."""
    x, y = np.diff(others), np.diff(span)
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    if len(x) < 8 or not (x * x).sum():
        return span
    calm = np.abs(y) <= 5 * 1.4826 * np.median(np.abs(y)) + 1
    slope = float((x * y)[calm].sum() / max((x * x)[calm].sum(), 1e-9))
    return span - slope * (others - np.nanmean(others))
