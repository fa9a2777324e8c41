"""Chance among thousands of ranks: exact tails of means in which each step's value might have been any rank's.

If ranks are equal, what one did in a step might as well have been done by any other. The mean of a rank over steps is
then that of one draw a step, and its distribution the convolution of those of the steps: no deals are needed, which
would take too many where a probability is multiplied by the number of ranks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

BINS = 1 << 14
"""Of the sum over steps: a value is rounded down to one of them, which raises no probability by more than half a bin a
step does."""
LEAST = 1e-12
"""What a transform in double precision still tells from 0."""


def tail(values: Any, means: Any) -> Any:
    """Probability that a draw from each step has a mean at least as large as some means.

    Args:
        values: Of ranks in steps; shape (ranks, steps).
        means: Means over steps to look up.

    Returns:
        At least `LEAST`, at most 1.
    """
    low, span = values.min(axis=0), float(np.ptp(values, axis=0).sum())
    if not span:
        return np.where(means <= low.mean() + 1e-9 * abs(low.mean()), 1.0, LEAST)
    width = span / (BINS - values.shape[1] - 1)
    # towards the middle of a bin, so that errors of steps cancel
    place = np.rint((values - low) / width).astype(np.int64)
    product = np.ones(BINS // 2 + 1, complex)
    for column in place.T:
        product *= np.fft.rfft(np.bincount(column, minlength=BINS) / len(column))
    chance = np.clip(np.fft.irfft(product, BINS), 0, None)
    above = np.cumsum(chance[::-1])[::-1]
    wanted = np.floor((np.asarray(means) * values.shape[1] - low.sum()) / width - 0.5 * values.shape[1] ** 0.5)
    return np.clip(above[np.clip(wanted, 0, BINS - 1).astype(np.int64)], LEAST, 1.0)
