"""Candidates: ranks that work longer than their peers, and how long steps would have taken if they did not."""

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
"""Scenario in which a rank is relieved of several kinds of work at once, in each of which it exceeds its peers."""
MOST_RANKS = 12
"""At most this many ranks are examined, those with the largest excess."""
MOST_MISSED = 0.2
"""A rank is examined only if at most this fraction of its waits may have been missed; else its work is not known."""
MAY_BE_WAITING = 0.5
"""A rank is not a candidate if more than this fraction of its excess may be waiting."""
KINDS_EACH = 3
"""At most this many kinds of work of a rank are examined alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A rank that may be a culprit."""

    excess: Excess
    row: int
    """Row of the rank in `excess`."""
    scenarios: Mapping[str, Sequence[Relief]]
    """Scenario -> what the rank is relieved of: kinds of work, largest excess first; then `TOGETHER`; then `WHOLE`,
    which also adds what the rank does faster than its peers."""

    @property
    def rank(self) -> int:
        """Index of the rank."""
        return int(self.excess.ranks[self.row])

    @property
    def kinds(self) -> list[str]:
        """The scenarios of a single kind of work."""
        return [kind for kind in self.scenarios if kind not in (TOGETHER, WHOLE)]


def candidates(job: Job, groups: Sequence[Excess], least_ns: float) -> list[Candidate]:
    """Returns the ranks with the largest excess in a kind of work, of at least `least_ns` per step."""
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
    """Marks ranks whose excess may be overlooked waiting: where they work longer, an op was in flight for longer, too.

    On a rank that really works longer, ops are in flight for a shorter time than on the ranks that wait for it.
    """
    if not job.unseen_ns.any():
        return np.zeros(len(excess.ranks), bool)
    places = int(excess.position.max(initial=0)) + 1
    work = np.zeros((places, len(excess.ranks)))
    np.add.at(work, excess.position, excess.mean.T)
    beyond = [np.clip(one - median_of_others(one), 0, None) for one in (work.T, _unseen(job, excess, places))]
    return np.minimum(*beyond).sum(axis=1) > MAY_BE_WAITING * beyond[0].sum(axis=1)


def _unseen(job: Job, excess: Excess, places: int) -> Any:
    """Returns how long ops were in flight before each place, mean per step; shape (peers, places)."""
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
    """Returns what a rank does beyond its peers in one kind of work, or in all.

    `Excess.to_fix` gives the amount for each counted step; for other steps its mean is used. It is taken from where the
    rank exceeds its peers, largest excess first.

    Args:
        job: What ranks did.
        excess: Work of the rank and its peers.
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
    """Returns what is taken of each cell as a fraction of what was recorded; divided unknown work counts as a whole."""
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
    """Takes the largest values of each row first, up to the limit of the row."""
    order = np.argsort(-values, axis=1, kind="stable")
    ordered = np.take_along_axis(values, order, axis=1)
    before = np.cumsum(ordered, axis=1) - ordered
    found = np.empty_like(values)
    np.put_along_axis(found, order, np.clip(limit - before, 0, ordered), axis=1)
    return found


class ReplayedJob:
    """Replayed durations of the counted steps: one value per step and rank. What a rank costs is the mean over the
    ranks that it meets, directly or through others."""

    def __init__(self, job: Job, steps: Sequence[int]) -> None:
        self._replay = Replay(*ordered(job.graph))
        self._component = components(job)
        windows = job.steps[np.isin(job.steps[:, 1], steps)]
        self._places = np.searchsorted(self._replay.marks, windows[:, 2:])
        self.rank = windows[:, 0]
        """Index of the rank that each value is of."""
        self.as_it_was = self.durations([[]])[:, 0]

    def durations(self, scenarios: Sequence[Sequence[Relief]]) -> Floats:
        """Returns durations in ns; shape (steps of ranks, scenarios)."""
        times = self._replay.times(scenarios)
        return times[self._places[:, 1]] - times[self._places[:, 0]]

    def meets(self, rank: int) -> Any:
        """Marks the values of ranks that meet the rank with this index."""
        return self._component[self.rank] == self._component[rank]

    def mean(self, rank: int, values: Floats) -> float:
        """Returns the mean over the values of ranks that meet the rank with this index."""
        return float(values[self.meets(rank)].mean())
