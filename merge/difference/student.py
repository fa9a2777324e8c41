"""Student's t distribution: tails and quantiles."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

MANY = 200
"""Degrees of freedom from which it is the normal distribution."""


def two_sided(t: float, freedom: float) -> float:
    """Probability of a value that is as far from 0 as `t`.

    Args:
        t: The value; infinite where nothing scatters.
        freedom: Degrees of freedom; a fraction is rounded down, and below 1 nothing is improbable.
    """
    t = abs(t)
    if math.isnan(t) or freedom < 1:
        return 1.0
    if math.isinf(t):
        return 0.0
    return _of_normal(t) if freedom >= MANY else _of_whole(t, int(freedom))


def quantile(p: float, freedom: float) -> float:
    """The value beyond which, on both sides together, there is the probability `p`; infinite below 1 degree."""
    return math.inf if freedom < 1 else _quantile(p, min(int(freedom), MANY))


@lru_cache(maxsize=1000)
def _quantile(p: float, freedom: int) -> float:
    low, high = 0.0, 1.0
    while two_sided(high, freedom) > p:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided(middle, freedom) > p else (low, middle)
    return high


def _of_normal(t: float) -> float:
    return 2 * NormalDist().cdf(-t)


def _of_whole(t: float, freedom: int) -> float:
    """The finite series of Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    is_odd = freedom % 2
    term = cosine if is_odd else 1.0
    total = 0.0
    for place in range(3 if is_odd else 2, freedom + 1, 2):
        total += term
        term *= cosine * cosine * (place - 1) / place
    inside = 2 / math.pi * (angle + sine * total) if is_odd else sine * total
    return max(1 - inside, 0.0)
