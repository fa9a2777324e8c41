"""What a rank was doing at each instant: numbered activities, in lanes of intervals that do not overlap."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from distprof.arrays import Flags, Integers
from distprof.contract.tables import EVALUATION
from distprof.merge.activity.intervals import Intervals, edges_of

OF_MODULES = ("forward", "backward", "recompute", EVALUATION)
"""Kinds of activities that belong to modules."""


class Activity(NamedTuple):
    """What a rank does."""

    kind: str
    """forward, backward, recompute, evaluation, data, optimizer, host, unknown, or annotation (of the script)."""
    where: str | None = None
    """Module path; name of an annotation; for host, what it lies between. None if not known."""


class Activities:
    """Activities by number; negative numbers stand for waits for a collective."""

    def __init__(self) -> None:
        self.known: list[Activity] = []
        self._numbers: dict[Activity, int] = {}

    def number(self, activity: Activity) -> int:
        """Returns the number of an activity, adding it if it is new."""
        number = self._numbers.setdefault(activity, len(self.known))
        if number == len(self.known):
            self.known.append(activity)
        return number

    @staticmethod
    def waiting_for(collective: Integers) -> Integers:
        """Converts the number of a collective to the number for waiting in it, and vice versa."""
        return -1 - collective


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityLane:
    """Intervals in which a rank does one thing, ascending and without overlap; times in int64 ns."""

    starts: Integers
    ends: Integers
    labels: Integers

    @classmethod
    def of(cls, intervals: Iterable[tuple[int, int, int]]) -> ActivityLane:
        """Makes a lane from (start, end, label) in order of time."""
        table = np.array([one for one in intervals if one[1] > one[0]], np.int64).reshape(-1, 3)
        return cls(starts=table[:, 0], ends=table[:, 1], labels=table[:, 2])

    @classmethod
    def first_counts(cls, starts: Integers, ends: Integers, labels: Integers, *,
                     held: Flags | bool = True) -> ActivityLane:
        """Makes a lane from intervals, sorted by start, that may overlap: the earlier one counts. Those not `held` only
        hide others."""
        reach = np.maximum.accumulate(ends) if len(ends) else ends
        begins = np.maximum(starts, np.concatenate((starts[:1], reach[:-1])))
        held = held & (reach > begins)
        return cls(starts=begins[held], ends=reach[held], labels=labels[held])

    def under(self, top: ActivityLane) -> ActivityLane:
        """Returns this lane, overlaid by the other one."""
        edges = edges_of(self, top)
        here, label = self.at(edges[:-1])
        above, upper = top.at(edges[:-1])
        return self._cut(edges, here | above, np.where(above, upper, label))

    def within(self, times: Intervals) -> ActivityLane:
        """Returns the part of the lane within a set of times."""
        edges = edges_of(self, times)
        here, label = self.at(edges[:-1])
        return self._cut(edges, here & times.covers(edges[:-1]), label)

    def outside(self, times: Intervals) -> ActivityLane:
        """Returns the part of the lane outside of a set of times."""
        edges = edges_of(self, times)
        here, label = self.at(edges[:-1])
        return self._cut(edges, here & ~times.covers(edges[:-1]), label)

    @staticmethod
    def _cut(edges: Integers, held: Flags, labels: Integers) -> ActivityLane:
        return ActivityLane(starts=edges[:-1][held], ends=edges[1:][held], labels=labels[held])

    def at(self, times: Integers) -> tuple[Flags, Integers]:
        """Returns whether each time is in an interval, and its label."""
        if not len(self.starts):
            return np.zeros(len(times), bool), np.zeros(len(times), np.int64)
        index = np.maximum(np.searchsorted(self.starts, times, "right") - 1, 0)
        inside = (self.starts[index] <= times) & (times < self.ends[index])
        return inside, self.labels[index]

    def intervals(self, labels: Sequence[int]) -> Intervals:
        """Returns the times at which one of these labels holds."""
        held = np.isin(self.labels, labels)
        return Intervals.of(self.starts[held], self.ends[held])

    def split(self, start: int, end: int) -> dict[int, int]:
        """Returns the time per label within a window."""
        inside = slice(self.ends.searchsorted(start, "right"), self.starts.searchsorted(end, "left"))
        found: dict[int, int] = {}
        # windows are short and there are many, so a loop is faster than calls of numpy
        for begin, stop, label in zip(self.starts[inside].tolist(), self.ends[inside].tolist(),
                                      self.labels[inside].tolist(), strict=True):
            found[label] = found.get(label, 0) + min(stop, end) - max(begin, start)
        return dict(sorted(found.items()))
