"""Communication as each rank has it, before it is matched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from distprof.contract.problems import Problem
from distprof.contract.tables import COLLECTIVES
from distprof.merge.run.tables import empty


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRows:
    """One row per communication op of a rank, in the order in which the rank issued them.

    The columns are those of `COLLECTIVES` and `comms_id`, the id that the backend gives to a collective; times are of
    the rank's own clock. Of traces of other programs much may be null, and `lane` is there too: it keeps communicators
    apart that have no name.
    """

    frames: Mapping[int, pl.DataFrame]
    """By rank; of ranks that are not there nothing is known, of those without rows that they issued nothing."""
    problems: Sequence[Problem] = ()

    @property
    def rows(self) -> pl.DataFrame:
        """The rows of all ranks."""
        nothing = empty(COLLECTIVES).with_columns(pl.lit(None, pl.String).alias("comms_id"))
        return pl.concat(list(self.frames.values()) or [nothing])
