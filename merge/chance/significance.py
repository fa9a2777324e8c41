"""Significance: how likely one of equal ranks stands out as much by chance."""

from __future__ import annotations

from typing import Any

import numpy as np

MOST, FEWEST = 2000, 600
"""Permutations that are tried; fewer of many ranks."""
NUMBERS = 4_000_000
"""Numbers that are drawn for them."""
AT_ONCE = 1_000_000
AS_IS, CLIPPED = 0.8, 0.2
"""Parts of the probability of a false alarm that the two tests have."""
CLEAR = 0.001
"""What is as improbable as it is, is not clipped."""


def chance(beyond: Any, row: int, kind: int) -> float | None:
    """Probability that a balanced job has a rank which exceeds the others as much.

    If ranks are equal, what each did in a step might as well have been done by any other: the values of each step are
    dealt out to the ranks again and again. The largest mean over steps, of any rank and any kind of work, is compared
    with the one in question; and that of this kind alone, which counts as often as there are kinds. A rank that is
    always late also shows where the largest values are clipped, among which those of one that is late once are.

    Args:
        beyond: Work beyond that of the others; shape (ranks, steps, kinds).
        row: The rank.
        kind: The kind of work.

    Returns:
        At most 1; None with fewer than 2 ranks or 3 steps.
    """
    if beyond.shape[0] < 2 or beyond.shape[1] < 3:
        return None
    as_is = _chance(beyond, row, kind) / AS_IS
    if as_is <= CLEAR:
        return as_is
    # as many values as one rank has are made equal; which, does not depend on how they are dealt out
    most = np.quantile(beyond, 1 - 1 / beyond.shape[0], axis=(0, 1))
    return min(as_is, _chance(np.minimum(beyond, most), row, kind) / CLIPPED, 1.0)


def chances(beyond: Any) -> Any:
    """The same of the rank that exceeds the others most in each kind of work, in the mean over steps.

    Kinds are measured by their own spread, so that each counts alike: the probability is that of any kind in which a
    rank exceeds the others as much.

    Args:
        beyond: As above.

    Returns:
        A number a kind, at most 1; None with fewer than 2 ranks or 3 steps.
    """
    if beyond.shape[0] < 2 or beyond.shape[1] < 3:
        return None
    spread = beyond.std(axis=(0, 1))
    beyond = beyond / np.where(spread > 0, spread, 1)
    rows = beyond.mean(axis=1).argmax(axis=0)
    most = np.quantile(beyond, 1 - 1 / beyond.shape[0], axis=(0, 1))
    as_is, clipped = _any_kind(beyond, rows) / AS_IS, _any_kind(np.minimum(beyond, most), rows) / CLIPPED
    return np.minimum(np.minimum(as_is, clipped), 1.0)


def _any_kind(beyond: Any, rows: Any) -> Any:
    """How often any rank exceeds the others in any kind as much as one does in each; the rank of each kind."""
    seen = beyond.mean(axis=1)[rows, np.arange(beyond.shape[2])]
    most = _largest_means(beyond, _tries(beyond)).max(axis=1)
    return (1 + (most[:, None] >= seen - 1e-9 * np.abs(seen)).sum(axis=0)) / (1 + len(most))


def _chance(beyond: Any, row: int, kind: int) -> float:
    num_kinds = beyond.shape[2]
    seen = beyond[row, :, kind].mean()
    close = seen - 1e-9 * abs(seen)  # a sum in another order is the same
    tries = _tries(beyond)
    most = _largest_means(beyond, tries)
    any_kind, this_kind = int((most.max(axis=1) >= close).sum()) + 1, int((most[:, kind] >= close).sum()) + 1
    return float(min(any_kind, num_kinds * this_kind, tries + 1) / (tries + 1))


def _tries(beyond: Any) -> int:
    return int(np.clip(NUMBERS // (beyond.shape[0] * beyond.shape[1]), FEWEST, MOST))


def _largest_means(beyond: Any, tries: int) -> Any:
    """The largest mean over steps that any rank has, of each kind, where ranks are permuted within steps."""
    random, found = np.random.default_rng(0), []
    each = max(AT_ONCE // beyond.size, 1)
    steps = np.arange(beyond.shape[1])
    for start in range(0, tries, each):
        dealt = np.argsort(random.random((min(each, tries - start), *beyond.shape[:2])), axis=1)
        found.append(beyond[dealt, steps].mean(axis=2).max(axis=1))
    return np.concatenate(found)
