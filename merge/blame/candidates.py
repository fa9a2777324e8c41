"""Candidates: ranks that work longer than their peers, and what steps would have taken if they did not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from distprof.arrays import Floats
from distprof.merge.blame.excess import WHOLE, Excess
from distprof.merge.blame.peers import components
from distprof.merge.chance import median_of_others
from distprof.merge.program.job import Job
from distprof.merge.replay.graph import CALL
from distprof.merge.replay.order import ordered
from distprof.merge.replay.replay import Relief, Replay

TOGETHER = "together"
"""The scenario in which a rank is relieved of all kinds of work in which it exceeds its peers."""
MOST_RANKS = 12
"""Ranks that are looked at, those with the largest excess."""
MOST_MISSED = 0.2
"""Share of the waits of a rank that may be missed; of more, what is work and what is waiting is not known."""
MAY_BE_WAITING = 0.5
"""Part of an excess that may be waiting, from which on it is none."""
KINDS_EACH = 3
"""Kinds of work of a rank that are looked at alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A rank that may be a culprit."""

    excess: Excess
    row: int
    """Of the rank in `excess`."""
    scenarios: Mapping[str, Sequence[Relief]]
    """By kind of work, the largest excess first; then `TOGETHER`, and `WHOLE`, which also gives back what it does
    faster than its peers."""

    @property
    def rank(self) -> int:
        """Index of the rank."""
        return int(self.excess.ranks[self.row])

    @property
    def kinds(self) -> list[str]:
        """Single kinds of work."""
        return [kind for kind in self.scenarios if kind not in (TOGETHER, WHOLE)]


def candidates(job: Job, groups: Sequence[Excess], least_ns: float) -> list[Candidate]:
    """Ranks that exceed their peers in a kind of work by so much a step, those with the largest excess."""
    found = []
    for group in groups:
        amounts = group.to_fix.mean(axis=1)[:len(group.ranks)]
        is_known = (job.misses_waits[group.ranks] <= MOST_MISSED) & ~_may_wait(job, group)
        for row in np.flatnonzero(is_known & (amounts.max(axis=1, initial=-np.inf) >= least_ns)).tolist():
            found.append((float(amounts[row].max()), group, row))
    found.sort(key=lambda one: -one[0])
    return [Candidate(excess=group, row=row, scenarios=_scenarios(job, group, row))
            for _, group, row in found[:MOST_RANKS]]


def _may_wait(job: Job, excess: Excess) -> Any:
    """Ranks whose excess may be waiting that was overlooked: where they work longer, an op was longer under way too.

    On a rank that really works longer, ops are under way for a shorter time than on those that wait for it.
    """
    if not job.unseen_ns.any():
        return np.zeros(len(excess.ranks), bool)
    places = int(excess.position.max(initial=0)) + 1
    work = np.zeros((places, len(excess.ranks)))
    np.add.at(work, excess.position, excess.mean.T)
    beyond = [np.clip(one - median_of_others(one), 0, None) for one in (work.T, _unseen(job, excess, places))]
    return np.minimum(*beyond).sum(axis=1) > MAY_BE_WAITING * beyond[0].sum(axis=1)


def _unseen(job: Job, excess: Excess, places: int) -> Any:
    """How long ops were under way in front of each place, a step; shape (peers, places)."""
    events, found = job.graph.events, np.zeros((len(excess.ranks), places))
    counted = excess.steps[excess.counts]
    calls = np.flatnonzero((events.kind == CALL) & np.isin(events.rank, excess.ranks) & np.isin(job.step, counted))
    place = np.minimum(job.position[calls] + 1, places - 1)
    np.add.at(found, (np.searchsorted(excess.ranks, events.rank[calls]), place), job.unseen_ns[events.part[calls]])
    return found / max(len(counted), 1)


def _scenarios(job: Job, excess: Excess, row: int) -> dict[str, Sequence[Relief]]:
    amounts = excess.to_fix[row].mean(axis=0)[:-1]
    kinds = [excess.kinds[kind] for kind in np.argsort(-amounts, kind="stable").tolist() if amounts[kind] > 0]
    found: dict[str, Sequence[Relief]] = {kind: [relief_of(job, excess, row, kind)] for kind in kinds[:KINDS_EACH]}
    if len(found) > 1:
        found[TOGETHER] = [relief for reliefs in found.values() for relief in reliefs]
    if list(found) != ["unknown"]:
        found[WHOLE] = [relief_of(job, excess, row, WHOLE)]
    return found


def relief_of(job: Job, excess: Excess, row: int, kind: str) -> Relief:
    """What a rank does more than its peers, of one kind of work or of all.

    How much it is in a step, `Excess.to_fix` says; of steps that do not count, the mean. It is taken where the rank
    exceeds its peers, where by most first.

    Args:
        job: What ranks did.
        excess: Of the rank and its peers.
        row: Index of the rank among them.
        kind: One of `excess.kinds`.
    """
    number = excess.kinds.index(kind)
    cells = np.flatnonzero((excess.kind_of == number) | (kind == WHOLE))
    beyond = excess.work[row][:, cells] - excess.usual[row, cells]
    amount = np.full((len(excess.steps), 1), excess.to_fix[row, :, number].mean())
    amount[excess.counts, 0] = excess.to_fix[row, :, number]
    sign = np.where(amount < 0, -1.0, 1.0)
    taken = sign * _largest_first(np.clip(sign * beyond, 0, None), np.abs(amount))
    ns = np.zeros(excess.work.shape[1:])
    ns[:, cells] = taken
    share = _of_recorded(excess, row, ns)
    size = share.size
    held = excess.place // size == row if size else np.zeros(0, bool)
    piece = excess.piece[held]
    less = share.reshape(-1)[excess.place[held] % size] * job.pieces.ns[piece] if size else np.zeros(0)
    some = less != 0
    event, where = np.unique(job.pieces.event[piece[some]], return_inverse=True)
    return Relief(event=event, ns=np.bincount(where.reshape(-1), less[some], len(event)))


def _of_recorded(excess: Excess, row: int, ns: Floats) -> Any:
    """What is taken of each cell, as a part of what was recorded; of unknown work, for all that it was divided into."""
    recorded, position = excess.recorded[row], excess.position
    untraced = recorded.any(axis=1) & (excess.work[row] != recorded).any(axis=1)
    if untraced.any():
        total = np.zeros((int(untraced.sum()), int(position.max()) + 1))
        for taken, part in ((ns, total), (recorded, whole := np.zeros_like(total))):
            np.add.at(part.T, position, taken[untraced].T)
        ns, recorded = ns.copy(), recorded.copy()
        ns[untraced], recorded[untraced] = total[:, position], whole[:, position]
    return np.divide(ns, recorded, out=np.zeros_like(ns), where=recorded > 0)


def _largest_first(values: Floats, limit: Floats) -> Floats:
    """Takes of each row the largest values first, up to its limit."""
    order = np.argsort(-values, axis=1, kind="stable")
    ordered = np.take_along_axis(values, order, axis=1)
    before = np.cumsum(ordered, axis=1) - ordered
    found = np.empty_like(values)
    np.put_along_axis(found, order, np.clip(limit - before, 0, ordered), axis=1)
    return found


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
