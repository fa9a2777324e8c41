"""Candidates: ranks that work longer than their peers, and the scenarios in which they do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from distprof.merge.blame.excess import WHOLE, Excess
from distprof.merge.blame.relief import relief_of
from distprof.merge.chance import median_of_others
from distprof.merge.program.job import Job
from distprof.merge.replay.graph import CALL
from distprof.merge.replay.replay import Relief

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
