"""Waiting in collectives, rank by rank."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import polars as pl

from distprof.arrays import Array, Integers
from distprof.contract.collective_ops import POINT_TO_POINT
from distprof.merge.activity.activities import Activities, ActivityLane
from distprof.merge.activity.intervals import Intervals

WAITED = ("collective", "rank", "op", "step", "num_ranks", "enqueue_ns", "arrival_ns", "end_ns", "wait_ns")
"""Columns that waiting is found from; the lists and texts of a million rows are large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCollectives:
    """The collectives of one rank, by arrival; times on the common clock."""

    collective: Integers
    step: Integers
    enqueue_ns: Integers
    arrival_ns: Integers
    end_ns: Integers
    last_arrival_ns: Integers
    """When the last rank of the collective arrived; this rank's own arrival where that is not known."""
    together: Array
    """False for sends and receives."""

    @property
    def in_flight(self) -> Intervals:
        """From when the rank called them until they had ended."""
        return Intervals.of(np.minimum(self.enqueue_ns, self.arrival_ns), self.end_ns)

    @property
    def running(self) -> Intervals:
        """From when they began on this rank until they had ended."""
        return Intervals.of(self.arrival_ns, self.end_ns)

    @property
    def messages(self) -> RankCollectives:
        """Sends and receives alone."""
        return RankCollectives(**{one.name: getattr(self, one.name)[~self.together] for one in fields(self)})

    def waits(self) -> ActivityLane:
        """When the rank was there and another was not; of several collectives the one it came to first counts."""
        ends = np.minimum(self.last_arrival_ns, self.end_ns)
        waited = np.flatnonzero(ends > self.arrival_ns)
        order = waited[np.argsort(self.arrival_ns[waited], kind="stable")]
        return ActivityLane.first_counts(self.arrival_ns[order], ends[order],
                                         Activities.waiting_for(self.collective[order]))

    @property
    def waiting(self) -> Intervals:
        """When the rank was there and another was not."""
        waits = self.waits()
        return Intervals.of(waits.starts, waits.ends)


def collectives_by_rank(rows: pl.DataFrame) -> dict[int, RankCollectives]:
    """The collectives of every rank whose arrival and end are known.

    Args:
        rows: `MERGED_COLLECTIVES`, of the steps that count.
    """
    known = with_receivers(rows.select(WAITED)).drop_nulls(("arrival_ns", "end_ns"))
    table = known.select(
        "rank", "collective", pl.col("step").fill_null(-1), pl.col("enqueue_ns").fill_null(pl.col("arrival_ns")),
        "arrival_ns", "end_ns", last_arrival_ns=pl.col("arrival_ns") + pl.col("wait_ns").fill_null(0),
        together=~pl.col("op").is_in(POINT_TO_POINT),
    ).sort("rank", "arrival_ns")
    return {int(key[0]): RankCollectives(**{name: part[name].to_numpy() for name in part.columns if name != "rank"})
            for key, part in table.partition_by("rank", as_dict=True, maintain_order=True).items()}


def with_receivers(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows with `wait_ns` of those that wait for a sender: until the sender was there."""
    is_pair = pl.col("op").is_in(POINT_TO_POINT) & (pl.col("num_ranks") == 2)
    sent = rows.filter(is_pair, pl.col("op") == "send").select("collective", sent_ns="arrival_ns").unique("collective")
    if sent.is_empty():
        return rows
    joined = rows.join(sent, on="collective", how="left", maintain_order="left")
    waited = (pl.col("sent_ns") - pl.col("arrival_ns")).clip(0)
    waited = pl.min_horizontal(waited, (pl.col("end_ns") - pl.col("arrival_ns")).clip(0))
    return joined.with_columns(
        pl.when(is_pair & (pl.col("op") == "recv")).then(waited).otherwise("wait_ns").alias("wait_ns")).drop("sent_ns")
