"""Slices of the ranks of a run, read when they are asked for: those of a thousand ranks fit into no memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import polars as pl

from distprof.errors import DataError
from distprof.merge.activity.rank_slices import slices_of
from distprof.merge.clock.model import Clock
from distprof.merge.run.run_model import Rank

HELD = 2_000_000
"""Slices that are kept, some 100 bytes each: most runs are read once."""


class Timelines(Mapping[int, pl.DataFrame]):
    """Slices by rank, on the common clock; a DataError where those of a rank cannot be read any more."""

    def __init__(self, ranks: Mapping[int, Rank], clock: Clock) -> None:
        """Ranks that have a timeline that could be read."""
        self._ranks, self._clock = ranks, clock
        self._held: dict[int, pl.DataFrame] = {}

    def __len__(self) -> int:
        return len(self._ranks)

    def __iter__(self) -> Iterator[int]:
        return iter(self._ranks)

    def __getitem__(self, rank: int) -> pl.DataFrame:
        if rank not in self._held:
            found = slices_of(self._ranks[rank], self._clock.line(rank))
            if not isinstance(found, pl.DataFrame):
                why = "none" if found is None else found.detail
                raise DataError(f"the timeline of rank {rank} changed while it was being read: {why}",
                                hint="files changed while they were being read: try again")
            self._held[rank] = found
            while len(self._held) > 1 and sum(map(len, self._held.values())) > HELD:
                del self._held[next(iter(self._held))]
        return self._held[rank]
