"""When the mean of a series changed, and by how much: generalised likelihood ratios, series by series.

* A change between two windows is judged by the CUSUM statistic of the likelihood ratio (Page 1954; Lorden 1971): the
  difference of their means in standard errors.
* Several changes are found by binary segmentation (Scott and Knott 1974) over windows of dyadic lengths (seeded:
  Kovacs, Li, Buehlmann, Munk 2023), so that a short trouble in a long job is seen.
* Noise that remembers itself (other load on the machine) is in the standard error: it is that of means over long
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
"""Standard errors. A look at 64 ranks and 1,024 blocks tries about 10^6 windows, which overlap: the largest of so
many independent normal ones passes 6.5 once in 12,000 looks. The standard error itself is estimated, from dozens of
batches, which takes most of that reserve. docs/watch.md says what was measured."""
LEAST = 10
"""Blocks or samples after a change: 16 s of short steps, 80 long ones."""
BEFORE = 5
"""And before it."""
JOINT = 7.0
"""The same for a rank and the job at the same time."""
PART = 2.5
"""What each of the two must show at least."""
FEW = 4
"""Samples before and after."""
BATCHES = (1, 2, 4, 8, 16)
"""Lengths of batches whose spread is looked at; the largest counts."""
FEWEST = 12
"""Batches that it takes."""
OWN_MEMORY = 0.8
"""Of the spread of a rank's own batches that counts at least."""
INNER, INNER_OF_NORMAL = 0.85, 0.72
"""Share of the smallest differences, and their root mean square where the normal has 1: changes are among the rest."""
DEPTH = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A stretch of a series, from `begin` to before `end`, with a mean of its own."""

    begin: int
    end: int
    mean: float
    error: float
    """Standard error of the mean."""
    strength: float
    """Of the change at its start, in standard errors; infinite for the first."""


@dataclass(slots=True, kw_only=True)
class Series:
    """Values of ranks (or groups) over time, ready to be searched."""

    values: Floats
    """Of (times, ranks), without nan."""
    weight: Array
    step: Integers
    """The first step of each time."""
    sigma: Floats
    """Noise of each rank: `noise`."""
    strength: Any = field(default=None)
    """Of the largest change of each rank."""

    def place(self, step: float) -> int:
        """The first time that begins at that step or later."""
        return int(np.searchsorted(self.step, step))


def noise(values: Floats, weight: Floats) -> Any:
    """Standard deviation of a value of weight 1, such that means of n have it divided by the root of n.

    Args:
        values: Of (times, series); nan where unknown.
        weight: Values that each time stands for.
    """
    single = batched(values, weight, 1)
    if single is None:
        return np.full(values.shape[1], np.inf)
    most, memory, shorter = single, 1.0, 1.0
    for size in BATCHES:
        if (spread := batched(values, weight, size)) is not None:
            # a spread of n batches is known to about 1 / sqrt(n): the largest of several would be too large
            spread = spread * (1 - (size * 1.0 / len(values)) ** 0.5)
            # ranks are alike in how long they remember: together they tell that better than each by itself
            longer = float(np.median(spread / np.maximum(single, 1e-9))) ** 2
            # what batches of this length still miss is what they found more than half as long ones (Richardson 1911)
            memory, shorter = max(memory, longer, 2 * longer - shorter), longer
            most = np.fmax(most, OWN_MEMORY * spread)
    return np.fmax(single * memory ** 0.5, most)


def batched(values: Floats, weight: Floats, size: int) -> Any:
    """The same from differences of neighbouring, overlapping batches of that size (Meketon and Schmeiser 1984)."""
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
    """Robust standard deviation around zero: of the median, or of the inner `INNER` if that is more."""
    size = np.sort(np.abs(steps), axis=0)
    middle = 1.4826 * (size[(len(size) - 1) // 2] + size[len(size) // 2]) / 2
    inner = size[:max(int(INNER * len(size)), 1)]
    return np.fmax(middle, np.sqrt(np.mean(inner * inner, axis=0)) / INNER_OF_NORMAL)


def filled(values: Any) -> Any:
    """Values; where one is unknown the mean of its series, moved as the other series are at that time."""
    known = ~np.isnan(values)
    if known.all():
        return values
    mean = np.where(known, values, 0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    moved = np.where(known, values - mean, 0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    return np.where(known, values, mean + moved[:, None])


def strongest(values: Floats, weight: Floats, sigma: Floats) -> tuple[Floats, Integers]:
    """Of each series the largest change in standard errors, and where it is.

    Args:
        values: Of (times, series), without nan.
        weight: Of each time.
        sigma: Of each series: `noise`.
    """
    best, where = np.zeros(values.shape[1]), np.zeros(values.shape[1], int)
    for at, ratio in ratios(values, weight):
        size = np.abs(ratio)
        place = size.argmax(axis=0)
        most = np.take_along_axis(size, place[None], 0)[0]
        where, best = np.where(most > best, at[place], where), np.fmax(most, best)
    return best / np.maximum(sigma, 1e-9), where


def ratios(values: Floats, weight: Floats) -> Iterator[tuple[Any, Any]]:
    """Of each pair of windows all places and the changes there, in units of the noise: (places, series)."""
    mass = np.append(0.0, np.cumsum(weight))
    total = np.concatenate([np.zeros((1, values.shape[1])), np.cumsum(values * weight[:, None], axis=0)])
    at = np.arange(BEFORE, len(values) - LEAST + 1)
    for left, right in _windows(len(values)):
        low, high = np.maximum(at - left, 0), np.minimum(at + right, len(values))
        before, after = mass[at] - mass[low], mass[high] - mass[at]
        known = (before >= FEW) & (after >= FEW)  # in blocks without samples nothing is known
        before, after = np.where(known, before, 1.0), np.where(known, after, 1.0)
        shift = (total[high] - total[at]) / after[:, None] - (total[at] - total[low]) / before[:, None]
        yield at, shift * (known / np.sqrt(1 / before + 1 / after))[:, None]


def joint(job: Series, *of_ranks: Series) -> tuple[Floats, Integers]:
    """Of each rank the largest change of it and of the job at the same place, and where it is.

    Noises of the job and of a rank are taken as independent: the likelihood ratio of both is the sum of the squares,
    whose chance is that of chi-square with two degrees of freedom, exp(-x * x / 2).

    Args:
        job: One column; the job became slower.
        of_ranks: Ranks compared with the others, on the same times; of several, the one that is surer counts.
    """
    size = of_ranks[0].values.shape[1]
    best, where = np.zeros(size), np.zeros(size, int)
    for (at, whole), *own in zip(ratios(job.values, job.weight),
                                 *(ratios(one.values, one.weight) for one in of_ranks), strict=True):
        rank = np.max([ratio / np.maximum(one.sigma, 1e-9) for (_, ratio), one in zip(own, of_ranks, strict=True)],
                      axis=0)
        steps = whole / np.maximum(job.sigma, 1e-9)
        both = np.where((rank >= PART) & (steps >= PART), np.hypot(rank, steps), 0.0)
        place = both.argmax(axis=0)
        most = np.take_along_axis(both, place[None], 0)[0]
        where, best = np.where(most > best, at[place], where), np.fmax(most, best)
    return best, where


def _windows(number: int) -> list[tuple[int, int]]:
    """Lengths of windows before and after: all of the series, and dyadic ones with all that is on the other side."""
    if number < BEFORE + LEAST:
        return []
    found, size = [(number, number)], LEAST
    while size < number // 2:
        found += [(size, size), (number, size)]
        size *= 2
    return found


def segments(values: Floats, weight: Floats, sigma: float, threshold: float = THRESHOLD) -> list[Segment]:
    """The stretches of one series."""
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
    """Cuts that are still strong between their neighbours; the weakest goes first."""
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
    """Mean of a stretch and its standard error; nan of an empty one."""
    mass = weight[begin:end].sum()
    if not mass:
        return np.full(values.shape[1:], np.nan), np.full(values.shape[1:], np.inf)
    shape = (-1, *[1] * (values.ndim - 1))
    return (values[begin:end] * weight[begin:end].reshape(shape)).sum(axis=0) / mass, sigma / np.sqrt(mass)


def turning_point(values: Floats, before: Floats, after: Floats, sigma: Floats) -> int:
    """The first place of the new level: maximum likelihood of a step between known levels, of several series at once.

    Args:
        values: Of (times, series); what lies far off both levels counts as on the nearer one.
        before: Level of each series before.
        after: And after.
        sigma: Noise of one value of each series.
    """
    low, high = np.minimum(before, after) - 2 * sigma, np.maximum(before, after) + 2 * sigma
    calm = np.clip(values, low, high)
    gain = ((before + after) / 2 - calm) * (after - before) / np.maximum(sigma, 1e-9) ** 2
    return int(np.append(0.0, np.cumsum(np.nansum(gain, axis=1))).argmax())
