"""Locates the step at which a problem began or ended, in the rows around it."""

from __future__ import annotations

from typing import Any

import numpy as np

from distprof.arrays import Floats
from distprof.merge.watch import shifts
from distprof.merge.watch.grid import FIELDS
from distprof.merge.watch.view import View

AROUND = 3.0
"""The search extends to this many times the slack of an estimate, on both sides."""
OUTSIDE = 4
"""Rows at both ends that are not searched, as they show the levels before and after."""
AT_END = 2
"""An onset within this many rows of an end of the search may lie beyond it."""
SEARCHES = 6
"""Most searches for one change; each is twice as wide as the one before."""
BETWEEN = 0.4
"""Share of a shift by which the rows before it may be above the normal level; more, and they are slow themselves."""
LOAD_ROWS = 8
"""Distance in rows over which load changes by more than the noise of rows."""
LEVEL = 96
"""Rows from which each of the levels before and after is estimated."""


def refined(view: View, begin: float, slack: float, place: int | None) -> tuple[float, float]:
    """Locates a change near `begin`.

    If it is found at an end of the searched rows, it may lie beyond: the search continues from there, twice as wide.

    Args:
        view: The job.
        begin: Estimated step of the change.
        slack: Uncertainty of that estimate, in steps.
        place: Column of the rank that changed; None if all ranks did.

    Returns:
        The step, and the number of steps of the row there.
    """
    for _ in range(SEARCHES):
        found, size, is_at_end = _searched(view, begin, slack, place)
        if not is_at_end or found == begin:
            break
        begin, slack = found, 2 * slack
    return found, size


def _searched(view: View, begin: float, slack: float, place: int | None) -> tuple[float, float, bool]:
    """Searches once; also returns whether the result is at an end of the searched rows."""
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
    """Finds the onset of a rank that seems slow from the start: blocks are too coarse to show an early onset.

    Args:
        view: The job.
        place: Column of the rank.
        shift_ns: By how much the rank is slow, per step.

    Returns:
        The step; None if the first rows are as slow as later ones, or no longer kept.
    """
    if view.grid.blocks.first[0] != view.grid.first[0]:
        return None  # the first rows are no longer kept
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
    """Returns the step of a change inside a row: a row with a value between both levels contains the change, at the
    corresponding fraction of its steps."""
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
    """Returns series that show the change, shape (rows, signals): the step time and, for a rank, its own phases minus
    the median of its peers."""
    rows = view.grid.rows[low:high].astype(float)
    span = np.median(shifts.filled(rows[:, :, FIELDS.index("span_ns")]), axis=1)
    names = view.own_phases
    if place is None or not names or rows.shape[1] < 2:
        return span[:, None]
    own = shifts.filled(sum(rows[:, :, FIELDS.index(name)] for name in names))
    others = np.median(np.delete(own, place, axis=1), axis=1)
    work = np.stack([others, own[:, place], own.max(axis=1)], axis=1)
    return np.stack([shifts.adjusted(span, work, LOAD_ROWS), own[:, place] - others], axis=1)
