"""What a rank was doing at each instant: painted intervals come in, the time by label within a window goes out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from distprof.merge.blame.spans import Spans


class Activity(NamedTuple):
    """What a rank does."""

    kind: str
    """forward, backward, recompute, data, optimizer, host, communication, or annotation of the script."""
    where: str | None = None
    """Module path; name of an annotation; for the host what it lies between. None where that is not known."""


class Activities:
    """Activities by number; numbers below 0 are waits for a collective."""

    def __init__(self) -> None:
        self.known: list[Activity] = []
        self._numbers: dict[Activity, int] = {}

    def number(self, activity: Activity) -> int:
        """Of this activity, the same each time."""
        number = self._numbers.setdefault(activity, len(self.known))
        if number == len(self.known):
            self.known.append(activity)
        return number

    @staticmethod
    def waiting_for(collective: Any) -> Any:
        """The number that stands for waiting in a collective, and the other way round."""
        return -1 - collective


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """Intervals in which a rank does one thing, ascending and without overlap; times in int64 ns."""

    starts: Any
    ends: Any
    labels: Any

    @classmethod
    def of(cls, intervals: Iterable[tuple[int, int, int]]) -> Lane:
        """From (start, end, label) in order of time."""
        table = np.array([one for one in intervals if one[1] > one[0]], np.int64).reshape(-1, 3)
        return cls(starts=table[:, 0], ends=table[:, 1], labels=table[:, 2])

    def under(self, top: Lane) -> Lane:
        """This lane where the other one is empty."""
        edges = np.unique(np.concatenate((self.starts, self.ends, top.starts, top.ends)))
        if not len(edges):
            return self
        at = edges[:-1]
        here, label = self.at(at)
        above, upper = top.at(at)
        label = np.where(above, upper, label)
        held = here | above
        return Lane(starts=at[held], ends=edges[1:][held], labels=label[held])

    def within(self, spans: Spans) -> Lane:
        """The part of it that lies in a set of times."""
        edges = np.unique(np.concatenate((self.starts, self.ends, spans.starts, spans.ends)))
        if not len(edges):
            return self
        inside, labels = self.at(edges[:-1])
        held = inside & spans.covers(edges[:-1])
        return Lane(starts=edges[:-1][held], ends=edges[1:][held], labels=labels[held])

    def outside(self, spans: Spans) -> Lane:
        """The part of it that does not lie in a set of times."""
        if not len(self.starts):
            return self
        return self.within(spans.outside(int(self.starts[0]), int(self.ends[-1])))

    def at(self, times: Any) -> tuple[Any, Any]:
        """Whether each time lies in an interval, and its label."""
        if not len(self.starts):
            return np.zeros(len(times), bool), np.zeros(len(times), np.int64)
        index = np.maximum(np.searchsorted(self.starts, times, "right") - 1, 0)
        inside = (self.starts[index] <= times) & (times < self.ends[index])
        return inside, self.labels[index]

    def spans(self, labels: Any) -> Spans:
        """When one of these labels holds."""
        held = np.isin(self.labels, labels)
        return Spans.of(self.starts[held], self.ends[held])

    def split(self, start: int, end: int) -> dict[int, int]:
        """Time by label within a window."""
        first, last = int(np.searchsorted(self.ends, start, "right")), int(np.searchsorted(self.starts, end, "left"))
        if first >= last:
            return {}
        lengths = np.minimum(self.ends[first:last], end) - np.maximum(self.starts[first:last], start)
        labels, places = np.unique(self.labels[first:last], return_inverse=True)
        return dict(zip(labels.tolist(), np.bincount(places, lengths).astype(np.int64).tolist(), strict=True))
