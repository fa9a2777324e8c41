"""What waiting cost each rank: the part of every wait in which it computed nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from distprof.merge.blame.activities import Activities
from distprof.merge.blame.intervals import Intervals
from distprof.merge.blame.rank_collectives import RankCollectives

COVERED = 0.995
"""Share of all waiting whose causes are looked for; the rest is in collectives that cost next to nothing."""
MOST = 50_000
"""Ranks of collectives whose causes are looked for, at most: of those that cost most."""


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
        return WaitingCosts(collective=self.collective[held], step=self.step[held], rank=self.rank[held],
                     waited_ns=self.waited_ns[held], together=self.together[held])


def waiting_costs(calls: Mapping[int, RankCollectives], blocked: Mapping[int, Intervals]) -> WaitingCosts:
    """What each rank's waits cost it: the part in which it computed nothing.

    Args:
        calls: Collectives by rank.
        blocked: When each rank's communication was exposed; where that is not known all of a wait counts.
    """
    parts = [_costs_of(rank, mine, blocked.get(rank)) for rank, mine in calls.items()]
    names = [field.name for field in fields(WaitingCosts)]
    return WaitingCosts(**{
        name: np.concatenate([getattr(part, name) for part in parts]) if parts else np.empty(0, np.int64)
        for name in names})


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
