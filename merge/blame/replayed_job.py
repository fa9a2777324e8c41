"""A job that is replayed: what its steps would have taken with less work on some rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distprof.arrays import Floats
from distprof.merge.blame.peers import components
from distprof.merge.program.job import Job
from distprof.merge.replay.order import ordered
from distprof.merge.replay.replay import Relief, Replay


class ReplayedJob:
    """Durations of the steps that count. A value a step of a rank; all that a rank costs is the mean over those ranks
    that it meets, directly or through others."""

    def __init__(self, job: Job, steps: Sequence[int]) -> None:
        self._replay = Replay(*ordered(job.graph))
        self._component = components(job)
        windows = job.steps[np.isin(job.steps[:, 1], steps)]
        self._places = np.searchsorted(self._replay.marks, windows[:, 2:])
        self.rank = windows[:, 0]
        """Index of the rank of each value."""
        self.as_it_was = self.durations([[]])[:, 0]

    def durations(self, scenarios: Sequence[Sequence[Relief]]) -> Floats:
        """ns; shape (steps of ranks, scenarios)."""
        times = self._replay.times(scenarios)
        return times[self._places[:, 1]] - times[self._places[:, 0]]

    def meets(self, rank: int) -> Any:
        """Which values are of ranks that meet one, by its index."""
        return self._component[self.rank] == self._component[rank]

    def mean(self, rank: int, values: Floats) -> float:
        """Over the ranks that meet one, by its index."""
        return float(values[self.meets(rank)].mean())
