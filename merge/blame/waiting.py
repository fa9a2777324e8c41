"""Waiting in collectives: those of each rank, what waiting in them cost it, and meetings, in which ranks can wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import polars as pl

from distprof.contract.collective_ops import POINT_TO_POINT
from distprof.merge.blame.activities import Activities, ActivityLane
from distprof.merge.blame.intervals import Intervals

WAITED = ("collective", "rank", "op", "step", "num_ranks", "enqueue_ns", "arrival_ns", "end_ns", "wait_ns")
"""Columns that waiting is found from; the lists and texts of a million rows are large."""
COVERED = 0.995
"""Share of all waiting whose causes are looked for; the rest is in collectives that cost next to nothing."""
MOST = 50_000
"""Ranks of collectives whose causes are looked for, at most: of those that cost most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCollectives:
    """The collectives of one rank, by arrival; times on the common clock."""

    collective: Any
    step: Any
    enqueue_ns: Any
    arrival_ns: Any
    end_ns: Any
    last_arrival_ns: Any
    """When the last rank of the collective arrived; this rank's own arrival where that is not known."""
    together: Any
    """False for sends and receives."""

    @property
    def in_flight(self) -> Intervals:
        """From when the rank called them until they had ended."""
        return Intervals.of(np.minimum(self.enqueue_ns, self.arrival_ns), self.end_ns)

    @property
    def running(self) -> Intervals:
        """From when they began on this rank until they had ended."""
        return Intervals.of(self.arrival_ns, self.end_ns)

    def waits(self) -> ActivityLane:
        """When the rank was there and another was not; of several collectives the one it came to first counts."""
        ends = np.minimum(self.last_arrival_ns, self.end_ns)
        waited = np.flatnonzero(ends > self.arrival_ns)
        order = waited[np.argsort(self.arrival_ns[waited], kind="stable")]
        return ActivityLane.first_counts(self.arrival_ns[order], ends[order],
                                         Activities.waiting_for(self.collective[order]))


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


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingCosts:
    """Exposed waiting, an element for each rank and collective; arrays of int64."""

    collective: Any
    step: Any
    rank: Any
    waited_ns: Any
    together: Any
    """bool: False for a receiver that waited for a sender."""

    def where(self, held: Any) -> WaitingCosts:
        """Those elements alone."""
        return WaitingCosts(**{one.name: getattr(self, one.name)[held] for one in fields(self)})


def waiting_costs(calls: Mapping[int, RankCollectives], blocked: Mapping[int, Intervals]) -> WaitingCosts:
    """What each rank's waits cost it: the part in which it computed nothing.

    Args:
        calls: Collectives by rank.
        blocked: When each rank's communication was exposed; where that is not known all of a wait counts.
    """
    parts = [_costs_of(rank, mine, blocked.get(rank)) for rank, mine in calls.items()]
    return WaitingCosts(**{
        one.name: np.concatenate([getattr(part, one.name) for part in parts]) if parts else np.empty(0, np.int64)
        for one in fields(WaitingCosts)})


def _costs_of(rank: int, calls: RankCollectives, exposed: Intervals | None) -> WaitingCosts:
    lane = calls.waits()
    waited = lane.ends - lane.starts if exposed is None else exposed.within(lane.starts, lane.ends)
    numbers = Activities.waiting_for(lane.labels)
    order = np.argsort(calls.collective, kind="stable")
    place = order[np.searchsorted(calls.collective[order], numbers)]
    return WaitingCosts(collective=numbers, step=calls.step[place], rank=np.full(len(numbers), rank), waited_ns=waited,
                        together=calls.together[place]).where(waited > 0)


def matter(costs: WaitingCosts, sizes: Mapping[int, int]) -> set[int]:
    """The collectives whose waiting is worth a look: those that cost most, until nearly all is covered.

    Args:
        costs: All waiting.
        sizes: Ranks by collective.
    """
    numbers, places = np.unique(costs.collective, return_inverse=True)
    totals = np.bincount(places, costs.waited_ns)
    order = np.argsort(-totals, kind="stable")
    before = np.concatenate(([0.0], np.cumsum(totals[order])[:-1])) if len(order) else totals
    windows = np.cumsum([sizes.get(number, 0) for number in numbers[order].tolist()])
    return set(numbers[order][(before < COVERED * totals.sum()) & (windows <= MOST)].tolist())


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """One collective that all ranks of its group leave only after all have come."""

    number: int
    step: int
    ranks: Any
    """Ascending."""
    arrival_ns: Any
    end_ns: Any
    first_ns: int
    """First arrival."""
    left_ns: int
    """Last end."""
    late: int
    """Which of `ranks` came last."""


def meetings(rows: pl.DataFrame) -> list[Meeting]:
    """Collectives in which ranks can wait for each other, by last arrival; messages in which a receiver waited too.

    Args:
        rows: `MERGED_COLLECTIVES`.
    """
    one_sided = pl.col("op").is_in(POINT_TO_POINT)
    waited = pl.when(one_sided).then((pl.col("wait_ns") > 0).any()).otherwise(pl.col("wait_ns").is_not_null().all())
    known = with_receivers(rows.select(WAITED)).filter(waited.over("collective"), pl.col("num_ranks") > 1)
    known = known.filter(pl.col("end_ns").is_not_null().all().over("collective"))
    table = known.sort("collective", "rank").select(
        "collective", pl.col("step").fill_null(-1), "rank", "arrival_ns", "end_ns")
    number, step, rank, arrival, end = (table[name].to_numpy() for name in table.columns)
    if not len(number):
        return []
    starts = np.flatnonzero(np.diff(number, prepend=-1))
    stops = np.append(starts[1:], len(number))
    last = np.maximum.reduceat(arrival, starts)
    is_last = np.flatnonzero(arrival == np.repeat(last, stops - starts))
    late = is_last[np.searchsorted(is_last, starts)] - starts
    columns = (starts, stops, number[starts], step[starts], np.minimum.reduceat(arrival, starts),
               np.maximum.reduceat(end, starts), late)
    order = np.argsort(last, kind="stable")
    return [Meeting(number=which, step=when, ranks=rank[start:stop], arrival_ns=arrival[start:stop],
                    end_ns=end[start:stop], first_ns=first, left_ns=left, late=who)
            for start, stop, which, when, first, left, who in zip(
                *(column[order].tolist() for column in columns), strict=True)]
