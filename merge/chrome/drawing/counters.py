"""Counters of the whole job: how many ranks wait, and how many bytes are in flight."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from distprof.merge.activity.intervals import Intervals
from distprof.merge.chrome.drawing.drawn import CounterValue


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCounter:
    """A counter with all its values, a pair of numbers each: in a job of a thousand ranks there are millions."""

    what: str
    state: str
    at_ns: Any
    """int64, ascending, on the common clock."""
    values: Any
    """int64, from then on."""

    @classmethod
    def of(cls, what: str, state: str, at_ns: Any, changes: Any) -> JobCounter:
        """Adds up changes, in any order, from 0."""
        order = np.argsort(at_ns, kind="stable")
        at_ns, changes = at_ns[order], changes[order]
        first = np.flatnonzero(np.diff(at_ns, prepend=at_ns[:1] - 1))
        together = np.add.reduceat(changes, first) if len(first) else changes
        held = together != 0
        return cls(what=what, state=state, at_ns=at_ns[first][held], values=np.cumsum(together[held]))

    def __iter__(self) -> Iterator[CounterValue]:
        for at_ns, value in zip(self.at_ns, self.values, strict=True):
            yield CounterValue(self.what, self.state, int(at_ns), int(value))


def waiting(waits: Iterator[tuple[Any, Any]]) -> JobCounter:
    """How many ranks wait; one that waits in several collectives at once is one.

    Args:
        waits: Of each rank the starts and ends of its waits, int64 ns.
    """
    every = [Intervals.of(starts, ends) for starts, ends in waits]
    starts, ends = (np.concatenate([np.empty(0, np.int64), *(getattr(one, side) for one in every)])
                    for side in ("starts", "ends"))
    return JobCounter.of("ranks", "waiting", np.append(starts, ends), np.repeat((1, -1), len(starts)))


def in_flight(starts: Any, ends: Any, size_bytes: Any) -> JobCounter:
    """Bytes that are moved, each from a start to an end in ns."""
    return JobCounter.of("bytes", "in flight", np.append(starts, ends), np.append(size_bytes, -size_bytes))
