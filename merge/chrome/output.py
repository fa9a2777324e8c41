"""What an output format is made of: an `Output` for the run, which gives a `RankWriter` for each rank.

What is in the merged trace is decided before, once for all formats: `RankPlan` of each rank, `RankEvents` of its
events.
A format writes that down; its row is in `formats.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from distprof.merge.chrome.rank_counts import RankCounts
from distprof.merge.chrome.rank_events import DecidedEvents, RankEvents
from distprof.merge.chrome.rank_plans import Plans, RankPlan
from distprof.merge.clock.model import Clock
from distprof.merge.run.run_model import Run


class RankWriter(Protocol):
    """Writes the events of one rank, in a worker, to which it travels before `begin`: it can be pickled until then."""

    @property
    def integers(self) -> Sequence[str]:
        """Keys of `args` whose integers it wants as columns of the scanner; no other writer has the same."""

    @property
    def texts(self) -> Sequence[str]:
        """Keys of `args` whose texts it wants as columns, likewise."""

    def begin(self, events: RankEvents) -> None:
        """Opens its files, empty: damage may have made an earlier pass useless."""

    def add(self, events: DecidedEvents) -> None:
        """Writes the next events."""

    def end(self) -> None:
        """Writes what comes behind the last ones, like what the merge draws itself."""

    def close(self) -> None:
        """Closes its files, also where the pass failed."""


class Output(Protocol):
    """Writes the merged trace in one format. Ranks are written side by side, then added in their order."""

    def begin(self) -> None:
        """Opens its files."""

    def rank_writer(self, plan: RankPlan) -> RankWriter | None:
        """The writer for a rank; None where the format takes the rank's file as it is."""

    def add(self, plan: RankPlan, counts: RankCounts) -> None:
        """Takes in a rank that was written, ranks ascending; counts of 0 where the file is taken as it is."""

    def end(self, counts: Sequence[RankCounts]) -> None:
        """Writes what comes behind the ranks, and closes its files."""


class NewOutput(Protocol):
    """Makes an output, a class as a rule."""

    def __call__(self, folder: Path, run: Run, clock: Clock, plans: Plans) -> Output:
        """Of the folder that takes in the files, the run, its clock, and what is decided of its ranks."""
