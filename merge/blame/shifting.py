"""Lateness that shifts: in each step a rank is late, and another one in the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from distprof.merge.blame.excess import Excess

FEWEST = 8
"""Steps from which on it shows whether lateness shifts."""
MATERIAL = 0.1
"""Smallest part of a step by which the latest rank is behind its peers: jitter of balanced ranks is less."""
MOST_OFTEN = 0.5
"""Largest part of the steps in which one rank is the latest, and the same above what is its share of them:"""
ABOVE_SHARE = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftingLateness:
    """What waiting for the latest rank of each step costs, where that is another one from step to step."""

    ranks: list[int]
    """Those that are the latest in a step."""
    num_steps: int
    late_ns: float
    """By how much the latest rank of a step works longer than its peers, median of the steps."""
    step_ns: float

    @property
    def share(self) -> float:
        """Of a step."""
        return self.late_ns / self.step_ns if self.step_ns else 0.0


def shifting_lateness(groups: Sequence[Excess], ranks: Sequence[int], step_ns: float) -> ShiftingLateness | None:
    """Looks at the largest set of peers.

    Args:
        groups: By how much ranks exceed their peers.
        ranks: Numbers of the ranks of the job.
        step_ns: Mean step.

    Returns:
        None where nobody is late, or one rank is too often.
    """
    largest = max(groups, key=lambda one: len(one.ranks), default=None)
    if largest is None or int(largest.counts.sum()) < FEWEST:
        return None
    beyond = largest.beyond[:, :, -1]
    often = np.bincount(beyond.argmax(axis=0), minlength=len(beyond)) / beyond.shape[1]
    latest = np.flatnonzero(often > 0)
    if latest[-1] >= len(largest.ranks):
        return None  # not all of them are known
    found = ShiftingLateness(
        ranks=[int(ranks[rank]) for rank in largest.ranks[latest]], num_steps=beyond.shape[1],
        late_ns=float(np.median(beyond.max(axis=0))), step_ns=step_ns)
    too_often = max(MOST_OFTEN, 1 / len(beyond) + ABOVE_SHARE)
    return found if often.max() <= too_often and found.share >= MATERIAL else None
