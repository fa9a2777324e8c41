"""Counters of the whole job: how many ranks wait, and how many bytes are in flight."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from distprof.arrays import Integers
from distprof.merge.activity.intervals import Intervals
from distprof.merge.chrome.drawing.drawn import CounterValue
from distprof.merge.spill import Parts


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCounter:
    """A counter by its changes: in a job of a thousand ranks there are millions."""

    what: str
    state: str
    changes: Parts
    """`at_ns`, on the common clock, and `change`, in any order; a part is earlier than the next one."""
    edges: Integers
    """int64, ascending: where the parts begin, but for the first."""

    def add(self, at_ns: Integers, changes: Integers) -> None:
        """Adds changes, int64."""
        self.changes.add(pl.DataFrame({"at_ns": at_ns, "change": changes}),
                         np.searchsorted(self.edges, at_ns, side="right"))

    def add_spans(self, starts: Integers, ends: Integers, amounts: Integers) -> None:
        """Adds amounts, each from a start to an end in ns."""
        self.add(np.append(starts, ends), np.append(amounts, -amounts))

    def __iter__(self) -> Iterator[CounterValue]:
        """Its values, each from then on."""
        value = 0
        for part in self.changes.numbers:
            rows = self.changes.read(part).group_by("at_ns").agg(pl.col("change").sum()).filter(
                pl.col("change") != 0).sort("at_ns")
            for at_ns, change in rows.iter_rows():
                value += change
                yield CounterValue(self.what, self.state, at_ns, value)


def add_waits(counter: JobCounter, starts: Integers, ends: Integers) -> None:
    """Adds the waits of a rank, int64 ns: one that waits in several collectives at once is one."""
    every = Intervals.of(starts, ends)
    counter.add_spans(every.starts, every.ends, np.ones(len(every.starts), np.int64))
