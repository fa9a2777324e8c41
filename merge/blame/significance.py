"""Significance: how likely a rank of a balanced job costs the others as much by chance."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def p_values(cost_ns: Any) -> Any:
    """Probability, a rank, that one of equal ranks stands out at least as much by chance.

    Two tests, the smaller of which counts twice: how often the rank cost most of all in a step (binomial: each has the
    same chance), and by how much more than the mean of all ranks in that step (one-sided t test over steps: if all are
    equal, the differences have mean 0). Both count as often as there are ranks, any of which might have stood out
    (Bonferroni). A rank is compared with those that cost less than it does: there may be several culprits.

    Args:
        cost_ns: What each rank cost the others; shape (ranks, steps).

    Returns:
        One a rank, at most 1; NaN with fewer than 2 ranks or 3 steps.
    """
    cost = np.asarray(cost_ns, float)
    num_ranks, num_steps = cost.shape
    found = np.full(num_ranks, np.nan)
    if num_ranks < 2 or num_steps < 3:
        return found
    order, largest = np.argsort(-cost.mean(axis=1), kind="stable"), 0.0
    for place in range(num_ranks - 1):
        # no rank is less likely to be one of chance than those which cost more
        largest = max(largest, min(2 * num_ranks * _chance(cost[order[place:]]), 1.0))
        found[order[place]] = largest
    found[order[-1]] = 1.0
    return found


def _chance(cost: Any) -> float:
    """Of the first of these ranks, alone."""
    num_ranks, num_steps = cost.shape
    most = int((cost[0] > cost[1:].max(axis=0)).sum())
    excess = cost[0] - cost.mean(axis=0)
    mean, spread = float(excess.mean()), float(excess.std(ddof=1)) / math.sqrt(num_steps)
    t = mean / spread if spread > 0 else math.inf if mean > 0 else 0.0
    return min(binomial_above(most, num_steps, 1 / num_ranks), student_above(t, num_steps - 1))


def binomial_above(count: int, tries: int, chance: float) -> float:
    """Probability of at least this many successes."""
    return sum(math.comb(tries, k) * chance ** k * (1 - chance) ** (tries - k) for k in range(count, tries + 1))


def student_above(t: float, freedom: int) -> float:
    """Probability that Student's t is above a value.

    The finite sums of Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.

    Args:
        t: The value.
        freedom: Degrees of freedom, 1 or more.
    """
    if math.isinf(t):
        return 0.0 if t > 0 else 1.0
    angle = math.atan2(t, math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2 == 1
    term, total = (cosine, 0.0) if odd else (1.0, 0.0)
    for k in range(1 if odd else 0, freedom - 1, 2):
        total += term
        term *= cosine * cosine * (k + 1) / (k + 2)
    inside = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return (1 - inside) / 2
