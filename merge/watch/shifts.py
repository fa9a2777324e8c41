"""Change-point detection: when the mean of a series changed, and by how much (generalised likelihood ratios).

* A change between two adjacent windows is judged by the CUSUM statistic of the likelihood ratio (Page 1954; Lorden
  1971): the difference of their means in standard errors.
* Several changes are found by binary segmentation (Scott and Knott 1974) over windows of dyadic lengths (seeded:
  Kovacs, Li, Buehlmann, Munk 2023), so that a short problem in a long job is found.
* The standard error accounts for autocorrelated noise (other load on the machine): it is that of means over long
  batches (batch means; Glynn and Whitt 1991), from differences of neighbouring batches, so that changes do not
  count as noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from distprof.arrays import Array, Floats, Integers

THRESHOLD = 6.5
"""Standard errors that a change in one series must reach. A search of 64 ranks and 1,024 blocks tests about 10^6
overlapping windows: the largest of as many independent normal values exceeds 6.5 once in 12,000 searches. The standard
error itself is estimated, from dozens of batches, which uses up most of that margin. docs/watch.md has measured
rates."""
LEAST = 10
"""Fewest blocks or samples after a change: 10 blocks are 16 s of short steps, or 80 long steps."""
BEFORE = 5
"""Fewest blocks or samples before a change."""
JOINT = 7.0
"""Standard errors (root of the sum of squares) that changes in a rank and in the job at the same place must reach."""
PART, JOB_PART = 4.0, 2.5
"""Standard errors that the change of a rank, and that of the job, must reach by themselves."""
FEW = 4
"""Smallest total weight before and after a change: samples, where only some blocks have one."""
BATCHES = (1, 2, 4, 8, 16)
"""Lengths of batches for which the spread of means is estimated; the largest estimate counts."""
FEWEST = 12
"""Fewest batches from which a spread is estimated."""
OWN_MEMORY = 0.8
"""The noise of a rank is at least this share of the spread of its own batches."""
INNER, INNER_OF_NORMAL = 0.85, 0.72
"""Share of the smallest differences that is used, and its root mean square for standard normal values. Changes are
among the other differences."""
DEPTH = 12
"""Deepest recursion of the binary segmentation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A stretch of a series between two changes, from index `begin` up to but not including `end`."""

    begin: int
    end: int
    mean: float
    error: float
    """Standard error of the mean."""
    strength: float
    """Size of the change at its start, in standard errors; infinite for the first segment."""


@dataclass(slots=True, kw_only=True)
class Series:
    """Values of ranks (or groups) over time, ready to be searched."""

    values: Floats
    """Shape (times, ranks), without nan."""
    weight: Array
    """Number of blocks or samples that each time stands for; shape (times,)."""
    step: Integers
    """First step of each time."""
    sigma: Floats
    """Noise of each rank, as `noise` estimates it."""
    strength: Any = field(default=None)
    """Size of the largest change of each rank, in standard errors; None where it was not computed."""

    def column(self, place: int) -> Series:
        """Returns the series of one rank; this one if it is of the job."""
        if self.values.shape[1] == 1:
            return self
        return Series(values=self.values[:, place, None], weight=self.weight, step=self.step,
                      sigma=self.sigma[place, None])

    def place(self, step: float) -> int:
        """Returns the index of the first time that begins at this step or later."""
        return int(np.searchsorted(self.step, step))


def noise(values: Floats, weight: Floats) -> Any:
    """Estimates the noise: the standard deviation of a value of weight 1, chosen so that a mean of n values has the
    standard error noise / sqrt(n) despite autocorrelation.

    Args:
        values: Shape (times, series), without nan.
        weight: Number of values that each time stands for.

    Returns:
        Shape (series,); infinite for too few values.
    """
    single = batched(values, weight, 1)
    if single is None:
        return np.full(values.shape[1], np.inf)
    most, memory, shorter = single, 1.0, 1.0
    for size in BATCHES:
        if (spread := batched(values, weight, size)) is not None:
            # the relative error of a spread from n batches is about 1 / sqrt(n): the largest of several would be biased
            spread = spread * (1 - (size * 1.0 / len(values)) ** 0.5)
            # ranks have similar autocorrelation times: all together give a better estimate than each one alone
            longer = float(np.median(spread / np.maximum(single, 1e-9))) ** 2
            # what batches of this length miss is about what they gained over half as long ones (Richardson 1911)
            memory, shorter = max(memory, longer, 2 * longer - shorter), longer
            most = np.fmax(most, OWN_MEMORY * spread)
    return np.fmax(single * memory ** 0.5, most)


def batched(values: Floats, weight: Floats, size: int) -> Any:
    """Estimates the noise from differences of neighbouring means over overlapping batches of one size (Meketon and
    Schmeiser 1984); None for too few batches."""
    number = len(values) - 2 * size + 1
    if number < max(3, FEWEST * size):
        return None
    mass = np.append(0.0, np.cumsum(weight))[:, None]
    total = np.concatenate([np.zeros((1, values.shape[1])), np.cumsum(values * weight[:, None], axis=0)])
    low, middle, high = slice(number), slice(size, size + number), slice(2 * size, 2 * size + number)
    before, after = mass[middle] - mass[low], mass[high] - mass[middle]
    steps = (total[high] - total[middle]) / after - (total[middle] - total[low]) / before
    return _spread(steps / np.sqrt(1 / before + 1 / after))


def _spread(steps: Floats) -> Any:
    """Returns a robust standard deviation around zero: from the median, or from the smallest `INNER` if that is
    more."""
    size = np.sort(np.abs(steps), axis=0)
    middle = 1.4826 * (size[(len(size) - 1) // 2] + size[len(size) // 2]) / 2
    inner = size[:max(int(INNER * len(size)), 1)]
    return np.fmax(middle, np.sqrt(np.mean(inner * inner, axis=0)) / INNER_OF_NORMAL)


def filled(values: Any) -> Any:
    """Replaces nan by the mean of the series plus the mean deviation of the other series at that time; a series without
    any value gets the mean of the others."""
    known = ~np.isnan(values)
    if known.all():
        return values
    mean = np.where(known, values, 0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    some = known.any(axis=0)
    mean = np.where(some, mean, mean[some].mean() if some.any() else 0.0)
    moved = np.where(known, values - mean, 0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    return np.where(known, values, mean + moved[:, None])


def adjusted(values: Floats, others: Floats, apart: int = 1) -> Floats:
    """Returns a series minus what others explain (control variates).

    The regression is fitted to differences, so that a jump does not bias it.

    Args:
        values: Shape (times,).
        others: Shape (times, others).
        apart: Distance of the times whose differences are taken.
    """
    x, y = others[apart:] - others[:-apart], values[apart:] - values[:-apart]
    known = np.isfinite(x).all(axis=1) & np.isfinite(y)
    x, y = x[known], y[known]
    if len(x) < 8:
        return values
    calm = np.abs(y) <= 5 * 1.4826 * np.median(np.abs(y)) + 1
    slopes = np.linalg.lstsq(x[calm], y[calm], rcond=1e-6)[0]
    return np.asarray(values - (others - np.nanmean(others, axis=0)) @ slopes)


def strongest(values: Floats, weight: Floats, sigma: Floats) -> tuple[Floats, Integers]:
    """Finds the largest change of each series.

    Args:
        values: Shape (times, series), without nan.
        weight: Weight of each time.
        sigma: Noise of each series, as `noise` estimates it.

    Returns:
        Its size in standard errors and the index of the first time after it, for each series.
    """
    best, where = np.zeros(values.shape[1]), np.zeros(values.shape[1], int)
    for at, ratio in ratios(values, weight):
        size = np.abs(ratio)
        place = size.argmax(axis=0)
        most = np.take_along_axis(size, place[None], 0)[0]
        where, best = np.where(most > best, at[place], where), np.fmax(most, best)
    return best / np.maximum(sigma, 1e-9), where


def ratios(values: Floats, weight: Floats) -> Iterator[tuple[Any, Any]]:
    """Yields, for each pair of window lengths, all places and the changes there: differences of means in units of the
    noise, scaled to a standard error of 1; shape (places, series)."""
    mass = np.append(0.0, np.cumsum(weight))
    total = np.concatenate([np.zeros((1, values.shape[1])), np.cumsum(values * weight[:, None], axis=0)])
    at = np.arange(BEFORE, len(values) - LEAST + 1)
    for left, right in _windows(len(values)):
        low, high = np.maximum(at - left, 0), np.minimum(at + right, len(values))
        before, after = mass[at] - mass[low], mass[high] - mass[at]
        known = (before >= FEW) & (after >= FEW)  # blocks without samples have weight 0
        before, after = np.where(known, before, 1.0), np.where(known, after, 1.0)
        shift = (total[high] - total[at]) / after[:, None] - (total[at] - total[low]) / before[:, None]
        yield at, shift * (known / np.sqrt(1 / before + 1 / after))[:, None]


def joint(job: Series, *of_ranks: Series) -> tuple[Floats, Integers]:
    """Finds, for each rank, the largest simultaneous change of the rank and of the job.

    The noises of the job and of a rank are taken as independent: the joint statistic is then the sum of squares, which
    has a chi-square distribution with two degrees of freedom, so that chance alone exceeds x with probability
    exp(-x * x / 2).

    Args:
        job: Step time of the job, one column or one for each rank; only increases count.
        of_ranks: Times of ranks compared with the others, at the same times as the job; of several series, the one with
            the larger change in standard errors counts.

    Returns:
        The size of the change in standard errors, 0 for none, and the index of the first time after it, for each rank.
    """
    size = of_ranks[0].values.shape[1]
    best, where = np.zeros(size), np.zeros(size, int)
    for (at, whole), *own in zip(ratios(job.values, job.weight),
                                 *(ratios(one.values, one.weight) for one in of_ranks), strict=True):
        rank = np.max([ratio / np.maximum(one.sigma, 1e-9) for (_, ratio), one in zip(own, of_ranks, strict=True)],
                      axis=0)
        steps = whole / np.maximum(job.sigma, 1e-9)
        both = np.where((rank >= PART) & (steps >= JOB_PART), np.hypot(rank, steps), 0.0)
        place = both.argmax(axis=0)
        most = np.take_along_axis(both, place[None], 0)[0]
        where, best = np.where(most > best, at[place], where), np.fmax(most, best)
    return best, where


def _windows(number: int) -> list[tuple[int, int]]:
    """Returns pairs of window lengths before and after a change: the whole series, and dyadic lengths after it with the
    same length or everything before it."""
    if number < BEFORE + LEAST:
        return []
    found, size = [(number, number)], LEAST
    while size < number // 2:
        found += [(size, size), (number, size)]
        size *= 2
    return found


def segments(values: Floats, weight: Floats, sigma: float, threshold: float = THRESHOLD) -> list[Segment]:
    """Divides one series into segments at its changes."""
    cuts = sorted(_cuts(values, weight, sigma, threshold, 0, len(values), 0))
    cuts = _kept(values, weight, sigma, threshold, cuts)
    found: list[Segment] = []
    for begin, end in zip([0, *cuts], [*cuts, len(values)], strict=True):
        mass = weight[begin:end].sum()
        mean = float((values[begin:end] * weight[begin:end]).sum() / mass)
        error = float(sigma / np.sqrt(mass))
        strength = np.inf if not found else abs(mean - found[-1].mean) / float(np.hypot(error, found[-1].error))
        found.append(Segment(begin=begin, end=end, mean=mean, error=error, strength=strength))
    return found


def _cuts(values: Floats, weight: Floats, sigma: float, threshold: float, begin: int, end: int,
          depth: int) -> list[int]:
    if end - begin < BEFORE + LEAST or depth > DEPTH:
        return []
    best, where = strongest(values[begin:end, None], weight[begin:end], np.array([sigma]))
    if best[0] < threshold:
        return []
    at = begin + int(where[0])
    return [at, *_cuts(values, weight, sigma, threshold, begin, at, depth + 1),
            *_cuts(values, weight, sigma, threshold, at, end, depth + 1)]


def _kept(values: Floats, weight: Floats, sigma: float, threshold: float, cuts: list[int]) -> list[int]:
    """Drops the weakest cut until all are strong enough, each judged between its neighbouring cuts."""
    while cuts:
        bounds = [0, *cuts, len(values)]
        sizes = []
        for low, at, high in zip(bounds, cuts, bounds[2:], strict=False):
            before, after = weight[low:at].sum(), weight[at:high].sum()
            shift = (values[at:high] * weight[at:high]).sum() / after - (values[low:at] * weight[low:at]).sum() / before
            sizes.append(abs(shift) / (sigma * np.sqrt(1 / before + 1 / after)))
        weakest = int(np.argmin(sizes))
        if sizes[weakest] >= threshold:
            break
        del cuts[weakest]
    return cuts


def mean_between(values: Floats, weight: Floats, begin: int, end: int, sigma: Floats) -> tuple[Floats, Floats]:
    """Returns the mean of a stretch and its standard error; nan and infinity if its weight is 0."""
    mass = weight[begin:end].sum()
    if not mass:
        return np.full(values.shape[1:], np.nan), np.full(values.shape[1:], np.inf)
    shape = (-1, *[1] * (values.ndim - 1))
    return (values[begin:end] * weight[begin:end].reshape(shape)).sum(axis=0) / mass, sigma / np.sqrt(mass)


def turning_point(values: Floats, before: Floats, after: Floats, sigma: Floats) -> int:
    """Returns the index of the first value at the new level: the maximum-likelihood position of a jump between two
    known levels, from several series at once.

    Args:
        values: Shape (times, series). Values are clipped to two sigmas outside of the levels.
        before: Level of each series before the jump.
        after: Level of each series after it.
        sigma: Noise of one value of each series.
    """
    low, high = np.minimum(before, after) - 2 * sigma, np.maximum(before, after) + 2 * sigma
    calm = np.clip(values, low, high)
    gain = ((before + after) / 2 - calm) * (after - before) / np.maximum(sigma, 1e-9) ** 2
    return int(np.append(0.0, np.cumsum(np.nansum(gain, axis=1))).argmax())
