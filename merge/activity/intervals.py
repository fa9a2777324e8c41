"""Sets of times as sorted arrays of disjoint intervals, with union, intersection, difference and length."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from distprof.arrays import Flags, Integers


@dataclass(frozen=True, kw_only=True)
class Intervals:
    """Disjoint half-open intervals of time, ascending; int64 ns."""

    starts: Integers
    ends: Integers

    @classmethod
    def of(cls, starts: npt.ArrayLike, ends: npt.ArrayLike) -> Intervals:
        """Returns the union of intervals in any order; empty and negative ones are ignored."""
        starts, ends = np.asarray(starts, np.int64), np.asarray(ends, np.int64)
        held = ends > starts
        starts, ends = starts[held], ends[held]
        if not len(starts):
            return NOTHING
        order = np.argsort(starts, kind="stable")
        starts, reach = starts[order], np.maximum.accumulate(ends[order])
        begins = np.append(True, starts[1:] > reach[:-1])
        return cls(starts=starts[begins], ends=reach[np.append(begins[1:], True)])

    @cached_property
    def _before(self) -> Integers:
        """Total length of the intervals before each one, and of all."""
        return np.concatenate(([0], np.cumsum(self.ends - self.starts)))

    def until(self, times: npt.ArrayLike) -> Integers:
        """Returns how much of the set is before each of these times."""
        times = np.asarray(times, np.int64)
        if not len(self.starts):
            return np.zeros(times.shape, np.int64)
        index = np.searchsorted(self.starts, times, "right") - 1
        inside = np.minimum(times, self.ends[np.maximum(index, 0)]) - self.starts[np.maximum(index, 0)]
        return np.where(index < 0, 0, self._before[np.maximum(index, 0)] + inside)

    def within(self, starts: npt.ArrayLike, ends: npt.ArrayLike) -> Integers:
        """Returns how much of the set is within each of these intervals, which may overlap each other."""
        return np.where(np.asarray(ends) > np.asarray(starts), self.until(ends) - self.until(starts), 0)

    def __and__(self, other: Intervals) -> Intervals:
        return self._where(other, np.logical_and)

    def __sub__(self, other: Intervals) -> Intervals:
        return self._where(other, np.greater)

    def __or__(self, other: Intervals) -> Intervals:
        return Intervals.of(np.concatenate((self.starts, other.starts)), np.concatenate((self.ends, other.ends)))

    def _where(self, other: Intervals, holds: np.ufunc) -> Intervals:
        """Returns the times at which a function of membership in this set and in the other set is true."""
        edges = edges_of(self, other)
        held = holds(self.covers(edges[:-1]), other.covers(edges[:-1]))
        return Intervals.of(edges[:-1][held], edges[1:][held])

    def covers(self, times: Integers) -> Flags:
        """Returns True for times in the set."""
        if not len(self.starts):
            return np.zeros(np.shape(times), bool)
        index = np.searchsorted(self.starts, times, "right") - 1
        return (index >= 0) & (times < self.ends[np.maximum(index, 0)])


def edges_of(one: Any, other: Any) -> Any:
    """Returns all starts and ends of two sets or lanes, ascending and unique: between two of them, neither changes."""
    edges = np.concatenate((one.starts, one.ends, other.starts, other.ends))
    edges.sort()  # np.unique() hashes integers, which takes ten times as long for nearly sorted values
    return edges[np.diff(edges, prepend=edges[:1] - 1) != 0]


NOTHING = Intervals(starts=np.empty(0, np.int64), ends=np.empty(0, np.int64))
"""The empty set."""
