"""Significance: how likely it is that one of several equal ranks stands out as much by chance.

If ranks are equal, each value of a step might as well have been any other rank's. Up to `MANY_RANKS`, this is tested by
permuting ranks within steps. With more, the tail of a mean is computed exactly: the mean of a rank over steps is that
of one draw per step, whose distribution is the convolution of those of the steps. Permutations would have to be too
many, because the probability is multiplied by the number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distprof.arrays import Floats, Integers

MOST, FEWEST = 2000, 600
"""Number of permutations; the smaller number with many ranks."""
NUMBERS = 4_000_000
"""Random numbers drawn for all permutations together, which limits their number."""
AT_ONCE = 1_000_000
AS_IS, CLIPPED = 0.8, 0.2
"""Shares of the false alarm rate that the tests of the values as they are and of the clipped values have."""
FIRST_LOOK = 2 / 3
"""Share of the false alarm rate that the first of two looks has; see `of_two_looks`."""
MANY_RANKS = 128
"""With more ranks, permutations take too long, and tails of sums are computed exactly."""
FEW_RANKS = 8
"""Up to this many ranks, a matrix product with many zeros is faster than looking values up."""


def chance(beyond: Floats, row: int, kind: int) -> float | None:
    """Returns the probability that a balanced job has a rank which exceeds the others as much.

    A permutation test: the values of each step are dealt out to the ranks at random, many times. The rank's mean over
    steps is compared with the largest mean of any rank and any kind of work, and with the largest of this kind alone,
    whose probability is multiplied by the number of kinds. The test is repeated with the largest values clipped, among
    which are those of ranks that were late once: a rank that is always late still stands out there.

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
        first: Of the look that has the larger share of the false alarm rate; None if it tells nothing.
        second: Of the other look.

    Returns:
        At most 1; one of them as it is if the other is None.
    """
    if first is None or second is None:
        return second if first is None else first
    return min(first / FIRST_LOOK, second / (1 - FIRST_LOOK), 1.0)


def chances(beyond: Floats) -> Any:
    """As `chance`, for the rank with the largest mean over steps in each kind of work.

    Kinds are divided by their standard deviations, so that all have equal weight: each probability is that of a rank
    that exceeds the others as much in any kind.

    Args:
        beyond: As for `chance`.

    Returns:
        One number per kind, at most 1; None with fewer than 2 ranks or 3 steps.
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
    """Returns, for each kind, how often the largest permuted mean of any kind is at least the observed mean."""
    most = largest.max(axis=1)
    return (1 + (most[:, None] >= seen - 1e-9 * np.abs(seen)).sum(axis=0)) / (1 + len(most))


def _chance(largest: Floats, seen: float, kind: int) -> float:
    close = seen - 1e-9 * abs(seen)  # sums in another order count as equal
    tries, num_kinds = largest.shape
    any_kind, this_kind = int((largest.max(axis=1) >= close).sum()) + 1, int((largest[:, kind] >= close).sum()) + 1
    return float(min(any_kind, num_kinds * this_kind, tries + 1) / (tries + 1))


def _with_clipped(beyond: Floats) -> Floats:
    """Returns all kinds, and all kinds again with their largest values clipped: as many as one rank has values. Which
    these are does not depend on how values are dealt out, so that one permutation serves both.
    """
    most = np.quantile(beyond, 1 - 1 / beyond.shape[0], axis=(0, 1))
    return np.concatenate((beyond, np.minimum(beyond, most)), axis=2)


def _tries(beyond: Floats) -> int:
    return int(np.clip(NUMBERS // (beyond.shape[0] * beyond.shape[1]), FEWEST, MOST))


def _largest_means(beyond: Floats, tries: int) -> Floats:
    """Returns the largest mean of any rank, for each permutation (of ranks within steps) and kind of work."""
    random, found = np.random.default_rng(0), []
    each = max(AT_ONCE // beyond.size, 1)
    means = _means_by_product if beyond.shape[0] <= FEW_RANKS else _means_by_place
    for start in range(0, tries, each):
        dealt = np.argsort(random.random((min(each, tries - start), *beyond.shape[:2])), axis=1)
        found.append(means(beyond, dealt).max(axis=1))
    return np.concatenate(found)


def _means_by_place(beyond: Floats, dealt: Integers) -> Any:
    """Returns the mean over steps of the values that each rank is dealt."""
    return beyond[dealt, np.arange(beyond.shape[1])].mean(axis=2)


def _means_by_product(beyond: Floats, dealt: Integers) -> Any:
    """Computes the same as a matrix product, with a 1 where a rank is dealt a value."""
    num_ranks, num_steps, num_kinds = beyond.shape
    chosen = (dealt[..., None] == np.arange(num_ranks)).reshape(-1, num_steps * num_ranks).astype(np.float64)
    values = beyond.transpose(1, 0, 2).reshape(num_steps * num_ranks, num_kinds)
    return (chosen @ values).reshape(len(dealt), num_ranks, num_kinds) / num_steps


def median_of_others(values: Floats) -> Any:
    """Returns, for each entry, the median of the other entries along the first axis that are not NaN; NaN if there are
    none."""
    number = len(values)
    if number < 2:
        return np.full(values.shape, np.nan)
    order = np.argsort(values, axis=0, kind="stable")  # NaN goes to the end
    ordered = np.take_along_axis(values, order, axis=0)
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(number).reshape(-1, *[1] * (values.ndim - 1)), axis=0)
    unknown = np.isnan(values)
    if unknown.any():
        return _median_of_known(ordered, place, unknown)

    def without_itself(index: int) -> Any:
        return np.where(index < place, ordered[index], ordered[index + 1])

    middle = (number - 1) // 2
    return without_itself(middle) if number % 2 == 0 else (without_itself(middle - 1) + without_itself(middle)) / 2


def _median_of_known(ordered: Floats, place: Integers, unknown: Any) -> Any:
    others = (~unknown).sum(axis=0) - ~unknown

    def without_itself(index: Integers) -> Any:
        index = index + (index >= place)
        return np.take_along_axis(ordered, np.clip(index, 0, len(ordered) - 1), axis=0)

    return np.where(others > 0, (without_itself((others - 1) // 2) + without_itself(others // 2)) / 2, np.nan)


BINS = 1 << 14
"""Number of bins for the sum over steps. Each value is split between the two bins next to it so that its mean is kept;
`tail` allows for an error of one bin times the square root of the number of steps: two deviations, as the splits of
steps are independent with mean 0."""
BEYOND = 30.0
"""The sum exceeds the bins with a probability of at most exp(-BEYOND) at either end, where it is counted as if it were
at the other end. This is less than `LEAST`."""
LEAST = 1e-12
"""Smallest probability that a Fourier transform in double precision distinguishes from 0."""


def tail(values: Floats, means: Floats) -> Any:
    """Returns the probability that a draw from each step has a mean at least as large as the given ones.

    Args:
        values: Values of ranks in steps; shape (ranks, steps).
        means: Means over steps.

    Returns:
        At least `LEAST`, at most 1.
    """
    num_steps, least = values.shape[1], values.min(axis=0)
    apart = values - least  # equal values become 0, without rounding
    if not apart.any():
        return np.where(means <= least.mean() + 1e-9 * abs(least.mean()), 1.0, LEAST)
    center = apart.mean(axis=0)
    apart -= center
    above, first, width = _sums(apart)
    beyond = np.asarray(means) * num_steps - least.sum() - center.sum()
    wanted = np.floor(beyond / width - num_steps ** 0.5) - first
    found = np.where(wanted < 0, 1.0, above[np.clip(wanted, 0, BINS).astype(np.int64)])
    return np.clip(found, LEAST, 1.0)


def _sums(apart: Floats) -> tuple[Any, int, float]:
    """Returns the probability that the sum over steps is in each bin or above, the number of the first bin (that of the
    mean is 0), and the width of a bin; there is one more bin above all others.

    Args:
        apart: Differences of values from the mean of their step, which are overwritten; shape (ranks, steps).
    """
    num_steps, (low, high) = apart.shape[1], _reach(apart)
    margin = min(num_steps, int(4 * num_steps ** 0.5), BINS // 4) + 1  # of splits, by Hoeffding's inequality
    width = (low + high) / (BINS - 2 * margin)
    apart /= width
    product = np.ones(BINS // 2 + 1, complex)
    for column in apart.T:
        product *= np.fft.rfft(_split(column))
    first = -margin - int(low / width)
    chance = np.roll(np.clip(np.fft.irfft(product, BINS), 0, None), -first)
    return np.append(np.cumsum(chance[::-1])[::-1], 0.0), first, width


def _reach(apart: Floats) -> tuple[float, float]:
    """Returns how far the sum over steps goes below and above its mean, by Bennett's inequality (1962).

    With many steps, this is much less than from the sum of the least to that of the largest values.

    Args:
        apart: Differences of values from the mean of their step; shape (ranks, steps).
    """
    variance, found = float(np.einsum("ij,ij->", apart, apart)) / len(apart), []
    for largest in (-apart.min(axis=0), apart.max(axis=0)):
        most = float(largest.max())
        wanted = BEYOND * most * most / variance
        ratio = wanted / 3 + (wanted * wanted / 9 + 2 * wanted) ** 0.5  # Bernstein's, which is never too small
        for _ in range(8):  # nor is what Newton's method makes of it, as the function is convex
            logarithm = np.log1p(ratio)
            ratio -= ((1 + ratio) * logarithm - ratio - wanted) / logarithm
        found.append(min(float(largest.sum()), float(ratio) * variance / most))
    return found[0], found[1]


def _split(places: Floats) -> Any:
    """Returns the probability of each bin if each of these places is as likely; bins are numbered modulo `BINS`."""
    lower = np.floor(places)
    upper_share, lower = places - lower, lower.astype(np.int64)
    return np.bincount(np.concatenate((lower, lower + 1)) % BINS, minlength=BINS,
                       weights=np.concatenate((1 - upper_share, upper_share))) / len(places)


def chance_of_any(values: Floats, rows: Integers | Sequence[int], tested: int) -> Any:
    """Returns the probability that any of many equal ranks has a mean as large as that of the given ranks.

    This is the smaller of the probabilities for the values as they are and for the clipped values, as in `chance`.

    Args:
        values: Values of peers; shape (ranks, steps).
        rows: The given ranks.
        tested: Number of means tested in the whole job: ranks times kinds of work.

    Returns:
        At most 1.
    """
    most = np.quantile(values, 1 - 1 / len(values))
    both = []
    for part, some in ((AS_IS, values), (CLIPPED, np.minimum(values, most))):
        both.append(np.minimum(tested * tail(some, some[rows].mean(axis=1)) / part, 1.0))
    return np.minimum(*both)
