"""Candidates: ranks that work longer than their peers, and the scenarios in which they do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from distprof.merge.blame.excess import WHOLE, Excess
from distprof.merge.blame.relief import relief_of
from distprof.merge.program.job import Job
from distprof.merge.replay.replay import Relief

TOGETHER = "together"
"""The scenario in which a rank is relieved of all kinds of work in which it exceeds its peers."""
MOST_RANKS = 12
"""Ranks that are looked at, those with the largest excess."""
MOST_MISSED = 0.2
"""Share of the waits of a rank that may be missed; of more, what is work and what is waiting is not known."""
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
        amounts = group.to_mend.mean(axis=1)
        is_known = job.misses_waits[group.ranks] <= MOST_MISSED
        for row in np.flatnonzero(is_known & (amounts.max(axis=1, initial=-np.inf) >= least_ns)).tolist():
            found.append((float(amounts[row].max()), group, row))
    found.sort(key=lambda one: -one[0])
    return [Candidate(excess=group, row=row, scenarios=_scenarios(job, group, row))
            for _, group, row in found[:MOST_RANKS]]


def _scenarios(job: Job, excess: Excess, row: int) -> dict[str, Sequence[Relief]]:
    amounts = excess.to_mend[row].mean(axis=0)[:-1]
    kinds = [excess.kinds[kind] for kind in np.argsort(-amounts, kind="stable").tolist() if amounts[kind] > 0]
    found: dict[str, Sequence[Relief]] = {kind: [relief_of(job, excess, row, kind)] for kind in kinds[:KINDS_EACH]}
    if len(found) > 1:
        found[TOGETHER] = [relief for reliefs in found.values() for relief in reliefs]
    if list(found) != ["unknown"]:
        found[WHOLE] = [relief_of(job, excess, row, WHOLE)]
    return found
