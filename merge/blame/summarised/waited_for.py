"""By how much others wait for a rank: what fixing it can gain at most, as waits in its groups show it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distprof.merge.blame.summarised.arrays import RankArrays, Stood


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitedFor:
    """How much longer than a rank everybody else waits, mean of a step; a value a rank."""

    by_any: Any
    """In the group in which that is most, or for its messages."""
    by_replicas: Any
    """Among ranks that do the same in other replicas of the model; NaN where it has no such group."""
    in_replica: Any
    """Among ranks of its own replica; likewise."""

    @property
    def most_ns(self) -> Any:
        """What fixing the rank gains at most: other replicas wait for its own, and its own for it.

        Others of its replica may have waited for something else meanwhile, and other replicas for another rank of its
        own.
        """
        most = np.where(np.isnan(self.by_replicas), self.by_any, self.by_replicas)
        return np.fmin(most, self.in_replica)


class Waits:
    """Waits of all ranks, put in order once."""

    def __init__(self, arrays: RankArrays) -> None:
        self._num_ranks, self._replica = len(arrays.ranks), arrays.replica
        self._for_messages = _for_messages(arrays, self._num_ranks)
        self._groups = _InGroups(arrays.in_groups, len(arrays.steps)) if len(arrays.in_groups.row) else None
        self.meets = _meets(arrays.in_groups, self._replica)
        """Number of the ranks of its replica that each rank meets in collectives; its own where it meets none."""

    def waited_for(self, fixed_ns: Any) -> WaitedFor:
        """Looks at all groups.

        The last one of a group waits only for the data. The one that waits least besides it says by how much the group
        would be earlier without it.

        Args:
            fixed_ns: By how much longer each rank would wait if it were fixed, as others are: 0 for those that stay.
        """
        by_any, by_replicas, in_replica = self._for_messages.copy(), *np.full((2, self._num_ranks), np.nan)
        if self._groups is not None:
            row, group, lead = self._groups.leads(fixed_ns)
            np.maximum.at(by_any, row, lead)
            members, replicas = _sizes(self._replica[row], group)
            inside, apart = (members > 1) & (replicas == 1), (members > 1) & (replicas == members)
            np.fmax.at(in_replica, row[inside], lead[inside])
            # a rank that is late makes all of its replica late
            if fixed_ns.any():
                lead = self._groups.leads(np.bincount(self._replica, fixed_ns)[self._replica])[2]
            np.fmax.at(by_replicas, row[apart], lead[apart])
        return WaitedFor(by_any=by_any, by_replicas=by_replicas, in_replica=in_replica)


class _InGroups:
    """Waits of a rank in a step of a group, group by group and step by step."""

    def __init__(self, stood: Stood, num_steps: int) -> None:
        num_ranks, self._num_steps = int(stood.row.max()) + 1, num_steps
        # groups of the same ranks are one: what is waited in them adds up
        key, place = np.unique((stood.where * num_steps + stood.step) * num_ranks + stood.row, return_inverse=True)
        self._own = np.bincount(place.reshape(-1), stood.ns)
        segment, self._row = np.divmod(key, num_ranks)
        self._first = np.flatnonzero(np.diff(segment, prepend=-1))
        self._counts = np.diff(np.append(self._first, len(key)))
        pairs, place = np.unique(segment // num_steps * num_ranks + self._row, return_inverse=True)
        self._pair, (self._group_of_pair, self._row_of_pair) = place.reshape(-1), np.divmod(pairs, num_ranks)

    def leads(self, fixed_ns: Any) -> tuple[Any, Any, Any]:
        """Rank, group, and how much longer everybody else in it waits, mean of a step; a value each."""
        lead = self._least_of_others(self._own + fixed_ns[self._row]) - self._own
        total = np.bincount(self._pair, np.where(np.isfinite(lead), lead, 0))
        return self._row_of_pair, self._group_of_pair, total / self._num_steps

    def _least_of_others(self, values: Any) -> Any:
        """The least value of the other entries of a segment; infinite where there is none."""
        least = np.minimum.reduceat(values, self._first)
        is_least = np.flatnonzero(values == np.repeat(least, self._counts))
        segment = np.searchsorted(self._first, is_least, "right") - 1
        one = is_least[np.flatnonzero(np.diff(segment, prepend=-1))]
        rest = values.copy()
        rest[one] = np.inf
        found = np.repeat(least, self._counts)
        found[one] = np.minimum.reduceat(rest, self._first)
        return found


def _meets(stood: Stood, replica: Any) -> Any:
    """The group inside of its replica in which each rank calls most."""
    found = -1 - np.arange(len(replica))
    if not len(stood.row):
        return found
    pairs, place = np.unique(np.stack((stood.row, stood.where)), axis=1, return_inverse=True)
    calls, (row, group) = np.bincount(place.reshape(-1), stood.calls), pairs
    members, replicas = _sizes(replica[row], group)
    inside = np.flatnonzero((members > 1) & (replicas == 1))
    for at in inside[np.argsort(calls[inside], kind="stable")].tolist():
        found[row[at]] = group[at]
    return found


def _sizes(replica: Any, group: Any) -> tuple[Any, Any]:
    """Ranks and replicas in the group of each value."""
    if not len(group):
        return group, group
    members = np.bincount(group)
    replicas = np.bincount(np.unique(np.stack((group, replica)), axis=1)[0], minlength=len(members))
    return members[group], replicas[group]


def _for_messages(arrays: RankArrays, num_ranks: int) -> Any:
    """By how much longer those that receive from a rank wait for that than their peers do."""
    found, stood = np.zeros(num_ranks), arrays.for_messages
    if not len(stood.row):
        return found
    pair, place = np.unique(stood.row * num_ranks + stood.where, return_inverse=True)
    mean = np.bincount(place.reshape(-1), stood.ns) / len(arrays.steps)
    receiver, sender = np.divmod(pair, num_ranks)
    peers_of = np.full(num_ranks, -1)
    for number, peers in enumerate(arrays.peers):
        peers_of[peers.rows] = number
    link = peers_of[receiver] * (len(arrays.peers) + 1) + peers_of[sender]
    order = np.argsort(link, kind="stable")
    for index in np.split(order, np.flatnonzero(np.diff(link[order])) + 1):
        # what ranks that are peers wait for others that are
        np.maximum.at(found, sender[index], mean[index] - np.median(mean[index]))
    return found
