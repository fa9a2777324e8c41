"""The time from the first to the last event of a rank, without events with implausible times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from distprof.arrays import Integers

FAR_NS = 86_400 * 10**9
"""Events separated from most others by a gap of a day are damaged or of another clock; the rest would shrink to a dot.
"""

Parts = Callable[[], Iterator[tuple[Any, Any]]]
"""Returns start and end of all events, part by part."""


class TimeSpan:
    """Sees the times of events once; a second time only if they are days apart."""

    def __init__(self) -> None:
        self._num_times = 0
        self._first, self._last = 2**63 - 1, -(2**63)

    def add(self, start: Integers, end: Integers) -> None:
        """Adds events."""
        if len(start):
            self._num_times += len(start)
            self._first, self._last = min(self._first, int(start.min())), max(self._last, int(end.max()))

    def span(self, parts: Parts) -> tuple[int, int] | None:
        """Returns first and last time, without events that are far from all others; None without events.

        Args:
            parts: The same events.
        """
        if not self._num_times:
            return None
        if self._last - self._first < FAR_NS:
            return self._first, self._last
        first, last = _around_the_middle(parts)
        return first, max(int(end[end < last + FAR_NS].max(initial=last)) for _, end in parts())


def _around_the_middle(parts: Parts) -> tuple[int, int]:
    """Returns the first and last start around the median start that no gap of `FAR_NS` separates from it.

    Starts are grouped by day (at most some 10^5), because there is no such gap within a day.
    """
    days: dict[int, list[int]] = {}
    for start, _ in parts():
        ordered = np.sort(start)
        found, places, counts = np.unique(ordered // FAR_NS, return_index=True, return_counts=True)
        for day, place, count in zip(found.tolist(), places.tolist(), counts.tolist(), strict=True):
            first, last, number = days.get(day, (2**63 - 1, -(2**63), 0))
            days[day] = [min(first, int(ordered[place])), max(last, int(ordered[place + count - 1])), number + count]
    firsts, lasts, numbers = np.array([days[day] for day in sorted(days)]).T
    middle = int(np.searchsorted(np.cumsum(numbers), (int(numbers.sum()) - 1) // 2, "right"))
    gaps = np.flatnonzero(firsts[1:] - lasts[:-1] >= FAR_NS)
    before, behind = gaps[gaps < middle], gaps[gaps >= middle]
    return int(firsts[before[-1] + 1 if len(before) else 0]), int(lasts[behind[0] if len(behind) else -1])
