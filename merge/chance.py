"""Significance: how likely one of equal ranks stands out as much by chance.

Among thousands of ranks tails of means are exact: each step's value might have been any rank's. If ranks are equal,
what one did in a step might as well have been done by any other. The mean of a rank over steps is then that of one draw
a step, and its distribution the convolution of those of the steps: no deals are needed, which would take too many where
a probability is multiplied by the number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distprof.arrays import Floats, Integers

MOST, FEWEST = 2000, 600
"""Permutations that are tried; fewer of many ranks."""
NUMBERS = 4_000_000
"""Numbers that are drawn for them."""
AT_ONCE = 1_000_000
AS_IS, CLIPPED = 0.8, 0.2
"""Parts of the probability of a false alarm that the two tests have."""
FIRST_LOOK = 2 / 3
"""Part of the probability of a false alarm that the first of two looks has."""
MANY_RANKS = 128
"""Of more, dealing out takes long, and tails of sums are exact."""
FEW_RANKS = 8
"""Up to so many, a product with zeros takes less time than looking values up."""


def chance(beyond: Floats, row: int, kind: int) -> float | None:
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
    if len(beyond) > MANY_RANKS:
        return float(chance_of_any(beyond[:, :, kind], [row], beyond.shape[0] * beyond.shape[2])[0])
    both = _with_clipped(beyond)
    largest, seen, num_kinds = _largest_means(both, _tries(beyond)), both[row].mean(axis=0), beyond.shape[2]
    as_is, clipped = (_chance(largest[:, first:first + num_kinds], float(seen[first + kind]), kind)
                      for first in (0, num_kinds))
    return min(as_is / AS_IS, clipped / CLIPPED, 1.0)


def of_two_looks(first: float | None, second: float | None) -> float | None:
    """Combines p-values of two looks at the same ranks, however much the looks have in common (weighted Bonferroni).

    Args:
        first: Of the look that has more of the probability of a false alarm; None if it tells nothing.
        second: Of the other look.

    Returns:
        At most 1; one of them as it is if the other is None.
    """
    if first is None or second is None:
        return second if first is None else first
    return min(first / FIRST_LOOK, second / (1 - FIRST_LOOK), 1.0)


def chances(beyond: Floats) -> Any:
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
    rows, num_kinds = beyond.mean(axis=1).argmax(axis=0), beyond.shape[2]
    both = _with_clipped(beyond)
    largest, seen = _largest_means(both, _tries(beyond)), both.mean(axis=1)
    as_is, clipped = (_any_kind(largest[:, half], seen[rows, half]) for half in (
        np.arange(num_kinds), np.arange(num_kinds, 2 * num_kinds)))
    return np.minimum(np.minimum(as_is / AS_IS, clipped / CLIPPED), 1.0)


def _any_kind(largest: Floats, seen: Floats) -> Any:
    """How often the largest mean of any kind is at least what was seen in each."""
    most = largest.max(axis=1)
    return (1 + (most[:, None] >= seen - 1e-9 * np.abs(seen)).sum(axis=0)) / (1 + len(most))


def _chance(largest: Floats, seen: float, kind: int) -> float:
    close = seen - 1e-9 * abs(seen)  # a sum in another order is the same
    tries, num_kinds = largest.shape
    any_kind, this_kind = int((largest.max(axis=1) >= close).sum()) + 1, int((largest[:, kind] >= close).sum()) + 1
    return float(min(any_kind, num_kinds * this_kind, tries + 1) / (tries + 1))


def _with_clipped(beyond: Floats) -> Floats:
    """All kinds, and all once more with as many values made equal as one rank has; which these are, does not depend on
    how they are dealt out. Ranks are dealt out once for both.
    """
    most = np.quantile(beyond, 1 - 1 / beyond.shape[0], axis=(0, 1))
    return np.concatenate((beyond, np.minimum(beyond, most)), axis=2)


def _tries(beyond: Floats) -> int:
    return int(np.clip(NUMBERS // (beyond.shape[0] * beyond.shape[1]), FEWEST, MOST))


def _largest_means(beyond: Floats, tries: int) -> Floats:
    """The largest mean over steps that any rank has, of each kind, where ranks are permuted within steps."""
    random, found = np.random.default_rng(0), []
    each = max(AT_ONCE // beyond.size, 1)
    means = _means_by_product if beyond.shape[0] <= FEW_RANKS else _means_by_place
    for start in range(0, tries, each):
        dealt = np.argsort(random.random((min(each, tries - start), *beyond.shape[:2])), axis=1)
        found.append(means(beyond, dealt).max(axis=1))
    return np.concatenate(found)


def _means_by_place(beyond: Floats, dealt: Integers) -> Any:
    """Means over steps of the values of the ranks that each rank is dealt."""
    return beyond[dealt, np.arange(beyond.shape[1])].mean(axis=2)


def _means_by_product(beyond: Floats, dealt: Integers) -> Any:
    """The same as a product of matrices, with a 1 where a rank is dealt a value."""
    num_ranks, num_steps, num_kinds = beyond.shape
    chosen = (dealt[..., None] == np.arange(num_ranks)).reshape(-1, num_steps * num_ranks).astype(np.float64)
    values = beyond.transpose(1, 0, 2).reshape(num_steps * num_ranks, num_kinds)
    return (chosen @ values).reshape(len(dealt), num_ranks, num_kinds) / num_steps


def median_of_others(values: Floats) -> Any:
    """The median over the other entries of the first axis, of each entry; NaN where there is none."""
    number = len(values)
    if number < 2:
        return np.full(values.shape, np.nan)
    order = np.argsort(values, axis=0, kind="stable")
    ordered = np.take_along_axis(values, order, axis=0)
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(number).reshape(-1, *[1] * (values.ndim - 1)), axis=0)

    def without_itself(index: int) -> Any:
        return np.where(index < place, ordered[index], ordered[index + 1])

    middle = (number - 1) // 2
    return without_itself(middle) if number % 2 == 0 else (without_itself(middle - 1) + without_itself(middle)) / 2


BINS = 1 << 14
"""Of the sum over steps: a value is rounded down to one of them, which raises no probability by more than half a bin a
step does."""
LEAST = 1e-12
"""What a transform in double precision still tells from 0."""


def tail(values: Floats, means: Floats) -> Any:
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


def chance_of_any(values: Floats, rows: Integers | Sequence[int], tested: int) -> Any:
    """Probability that any of many equal ranks has a mean as large as that of some.

    The smaller of what the values as they are and the clipped ones allow, as `chance` has them.

    Args:
        values: Of peers; shape (ranks, steps).
        rows: Ranks that are asked for.
        tested: Means that were looked at in the whole job: ranks times kinds of work.

    Returns:
        At most 1.
    """
    most = np.quantile(values, 1 - 1 / len(values))
    both = []
    for part, some in ((AS_IS, values), (CLIPPED, np.minimum(values, most))):
        both.append(np.minimum(tested * tail(some, some[rows].mean(axis=1)) / part, 1.0))
    return np.minimum(*both)
