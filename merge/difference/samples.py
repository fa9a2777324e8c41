"""Times of items measured in a run, for each counted step and rank, with their noise and scatter.

Noise is what two runs of the same program differ by: measured over several runs, or else assumed and estimated from the
run.

The scatter of means over steps is found by a circular block bootstrap that draws blocks of steps, with all ranks of a
step together. Ranks of a job wait for each other, so what slows one in a step slows all of them; drawn one by one they
would count as independent. Successive steps are correlated as well, and are drawn in blocks that are long enough for
that. Student's t distribution gives tails and quantiles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np
import polars as pl

from distprof.arrays import Floats

DRAWS = 400
NUMBERS = 4_000_000
"""Numbers that are in memory at once."""
FEWEST_BLOCKS = 3
"""Blocks are at most so long that the steps form this many."""
FEWEST_STEPS = 8
"""Fewer steps do not show how correlated they are."""
USUAL, MOST_ALIKE = 0.2, 0.97
Statistic = Callable[[Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Times in ns of items that ranks spent time on."""

    items: Sequence[Hashable]
    values: Floats
    """Shape (steps, ranks, items); 0 for what a rank did not do in a step."""
    alike: float | None = None
    """Correlation of successive steps, if more steps of the run show it; None: it is estimated from these steps."""

    @property
    def by_step(self) -> Any:
        """The mean over ranks; shape (steps, items)."""
        return self.values.mean(axis=1)

    def of(self, items: Mapping[Hashable, Sequence[Hashable]]) -> Samples:
        """Returns other items, each the sum of some of these; missing ones are 0."""
        place = {item: index for index, item in enumerate(self.items)}
        columns = [self.values[:, :, [place[one] for one in parts if one in place]].sum(axis=2)
                   for parts in items.values()]
        empty = np.zeros((*self.values.shape[:2], 0))
        return replace(self, items=list(items), values=np.stack(columns, axis=2) if columns else empty)

    @classmethod
    def from_rows(cls, rows: pl.DataFrame, keys: Sequence[str], cells: pl.DataFrame) -> Samples:
        """Makes samples from a table with `step`, `rank`, the columns that name an item, and `ns`, which is summed.

        Args:
            rows: The table.
            keys: Names of the columns that name an item.
            cells: `step` and `rank` of all that count, whether they have rows or not.
        """
        steps, ranks = (sorted(cells[name].unique().to_list()) for name in ("step", "rank"))
        found = rows.join(cells.select("step", "rank").unique(), on=["step", "rank"], how="semi")
        sums = found.group_by("step", "rank", *keys, maintain_order=True).agg(pl.col("ns").sum())
        items = list(dict.fromkeys(sums.select(keys).iter_rows()))
        place = {item: index for index, item in enumerate(items)}
        values = np.zeros((len(steps), len(ranks), len(items)))
        at_step, at_rank = ({number: index for index, number in enumerate(numbers)} for numbers in (steps, ranks))
        for step, rank, *item, ns in sums.iter_rows():
            values[at_step[step], at_rank[rank], place[tuple(item)]] = ns
        return cls(items=items if len(keys) > 1 else [item for item, in items], values=values)


def common_cells(windows: pl.DataFrame) -> pl.DataFrame:
    """Returns the rows of steps that all of the ranks have, from a table with `step` and `rank`."""
    ranks = windows["rank"].n_unique()
    return windows.filter(pl.col("rank").n_unique().over("step") == ranks)


BETWEEN_RUNS, ON_PROCESSORS = 0.01, 0.05
"""Relative standard deviation between runs that is assumed if no runs measure it, because of memory placement, cores
and neighbours of a rank. The second is for jobs that compute on processors, which share caches, clock rates and often
the machine with others: in 20 pairs of identical jobs, steps differed by 10 % (benchmarks/RESULTS.md)."""
OF_QUEUE, OF_QUEUE_ON_CORE = 0.4, 0.1
"""Further standard deviation, as a share of the part of a step in which ranks waited in the run queue: for times, and
for the time on a processor itself. Measured with identical jobs beside others on a busy machine
(benchmarks/RESULTS.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """How much runs differ by themselves, as a share of what is measured."""

    assumed: float = BETWEEN_RUNS
    """Relative standard deviation of everything."""
    base_queued: Sequence[float | None] = (None,)
    """For each run, the share of a step in which a thread waited for a processor; None if unknown."""
    new_queued: Sequence[float | None] = (None,)
    of_queue: float = OF_QUEUE
    """How much of that share is noise."""

    @property
    def is_measured(self) -> bool:
        """True if a side has several runs, which show by how much they differ."""
        return len(self.base_queued) + len(self.new_queued) > 2

    @property
    def by_queue(self) -> tuple[float, ...]:
        """Standard deviation of each run because of the run queue; 0 if unknown."""
        return tuple(self.of_queue * (one or 0.0) for one in (*self.base_queued, *self.new_queued))

    @property
    def on_core(self) -> Noise:
        """The noise of the time on a processor."""
        return replace(self, of_queue=OF_QUEUE_ON_CORE)

    @property
    def without_queue(self) -> Noise:
        """The noise of items compared with the rest of their own run, which was affected in the same way."""
        return replace(self, of_queue=0.0, assumed=min(self.assumed, BETWEEN_RUNS))


def mean(values: Floats) -> Any:
    """Returns the mean over the axis of steps, the second last one."""
    return values.mean(axis=-2)


def correlation(series: Floats) -> float:
    """Returns the lag-1 autocorrelation of steps, rather too high than too low.

    Estimates from few steps are biased towards independence, which is corrected, and uncertain: half of the standard
    error is added. If there are too few steps for an estimate, some correlation is assumed.
    """
    number = len(series)
    if number < FEWEST_STEPS:
        return USUAL
    beyond = series - series.mean()
    total = float(beyond @ beyond)
    alike = float(beyond[1:] @ beyond[:-1]) / total if total else 0.0
    alike = (number * alike + 1) / (number - 4)
    alike += float(np.sqrt(max(1 - alike ** 2, 0) / number)) / 2
    return float(np.clip(alike, 0, MOST_ALIKE))


def block_length(alike: float, number: int) -> int:
    """Returns the number of successive steps that are drawn together, for `number` steps.

    For a first-order autoregressive process, this length minimises the error of a circular block bootstrap of the mean.
    """
    length = (2 * alike / (1 - alike ** 2)) ** (2 / 3) * (1.5 * number) ** (1 / 3)
    return int(np.clip(round(length), 1, max(number // FEWEST_BLOCKS, 1)))


def standard_errors(values: Floats, statistic: Statistic, alike: float | None = None) -> tuple[Floats, float]:
    """Returns the standard error of a statistic for each item, and its degrees of freedom.

    Args:
        values: Shape (steps, items).
        statistic: `mean` or `middle_half`.
        alike: Correlation of successive steps, if more steps of the run show it; None: estimated from these.

    Returns:
        Infinite errors and 0 degrees for fewer than two steps.
    """
    number, items = values.shape
    if number < 2:
        return np.full(items, np.inf), 0.0
    if alike is None:
        alike = correlation(values.sum(axis=1))
    spread = _drawn(values, statistic, block_length(alike, number))
    # with few steps, blocks are too short to contain all of the correlation
    alone = _drawn(values, statistic, 1) if block_length(alike, number) > 1 else spread
    errors = np.maximum(spread, alone * np.sqrt((1 + alike) / (1 - alike)))
    # the correlation of squares of steps is the square of that of steps
    independent = max(number * (1 - alike ** 2) / (1 + alike ** 2), 2.0)
    return errors * np.sqrt(number / (number - 1)), independent - 1


def _drawn(values: Floats, statistic: Statistic, length: int) -> Any:
    """Returns the scatter of the statistic over bootstrap samples made of blocks of `length` steps."""
    number, found = len(values), []
    random = np.random.default_rng(0)
    each = int(np.clip(NUMBERS // max(values.size, 1), 1, DRAWS))
    for start in range(0, DRAWS, each):
        begins = random.integers(0, number, (min(each, DRAWS - start), -(-number // length), 1))
        drawn = ((begins + np.arange(length)) % number).reshape(len(begins), -1)[:, :number]
        found.append(statistic(values[drawn]))
    return np.concatenate(found).std(axis=0)


MANY = 200
"""Degrees of freedom from which on the normal distribution is used."""


def two_sided(t: float, freedom: float) -> float:
    """Returns the probability of a value at least as far from 0 as `t`.

    Args:
        t: The value; infinite if there is no scatter.
        freedom: Degrees of freedom; fractions are rounded down, and below 1 the result is 1.
    """
    t = abs(t)
    if math.isnan(t) or freedom < 1:
        return 1.0
    if math.isinf(t):
        return 0.0
    return _of_normal(t) if freedom >= MANY else _of_whole(t, int(freedom))


def quantile(p: float, freedom: float) -> float:
    """Returns the value that is exceeded in magnitude with probability `p`; infinite below 1 degree of freedom."""
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
    """Computes the two-sided tail with the finite series of Abramowitz and Stegun, 26.7.3 and 26.7.4."""
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
