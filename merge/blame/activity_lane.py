"""What a rank was doing at each instant, as intervals that do not overlap; each has the number of an activity."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from distprof.merge.blame.intervals import Intervals


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityLane:
    """Intervals in which a rank does one thing, ascending and without overlap; times in int64 ns."""

    starts: Any
    ends: Any
    labels: Any

    @classmethod
    def of(cls, intervals: Iterable[tuple[int, int, int]]) -> ActivityLane:
        """From (start, end, label) in order of time."""
        table = np.array([one for one in intervals if one[1] > one[0]], np.int64).reshape(-1, 3)
        return cls(starts=table[:, 0], ends=table[:, 1], labels=table[:, 2])

    def under(self, top: ActivityLane) -> ActivityLane:
        """This lane where the other one is empty."""
        edges = np.unique(np.concatenate((self.starts, self.ends, top.starts, top.ends)))
        if not len(edges):
            return self
        at = edges[:-1]
        here, label = self.at(at)
        above, upper = top.at(at)
        label = np.where(above, upper, label)
        held = here | above
        return ActivityLane(starts=at[held], ends=edges[1:][held], labels=label[held])

    def within(self, times: Intervals) -> ActivityLane:
        """The part of it that lies in a set of times."""
        edges = np.unique(np.concatenate((self.starts, self.ends, times.starts, times.ends)))
        if not len(edges):
            return self
        inside, labels = self.at(edges[:-1])
        held = inside & times.covers(edges[:-1])
        return ActivityLane(starts=edges[:-1][held], ends=edges[1:][held], labels=labels[held])

    def outside(self, times: Intervals) -> ActivityLane:
        """The part of it that does not lie in a set of times."""
        if not len(self.starts):
            return self
        return self.within(times.outside(int(self.starts[0]), int(self.ends[-1])))

    def at(self, times: Any) -> tuple[Any, Any]:
        """Whether each time lies in an interval, and its label."""
        if not len(self.starts):
            return np.zeros(len(times), bool), np.zeros(len(times), np.int64)
        index = np.maximum(np.searchsorted(self.starts, times, "right") - 1, 0)
        inside = (self.starts[index] <= times) & (times < self.ends[index])
        return inside, self.labels[index]

    def intervals(self, labels: Any) -> Intervals:
        """When one of these labels holds."""
        held = np.isin(self.labels, labels)
        return Intervals.of(self.starts[held], self.ends[held])

    def split(self, start: int, end: int) -> dict[int, int]:
        """Time by label within a window."""
        inside = slice(self.ends.searchsorted(start, "right"), self.starts.searchsorted(end, "left"))
        found: dict[int, int] = {}
        # windows are short, and there are many: a loop is faster than a call of numpy
        for begin, stop, label in zip(self.starts[inside].tolist(), self.ends[inside].tolist(),
                                      self.labels[inside].tolist(), strict=True):
            found[label] = found.get(label, 0) + min(stop, end) - max(begin, start)
        return dict(sorted(found.items()))
