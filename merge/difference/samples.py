"""What was measured of a run: times of some items, of each step and rank that counts, their noise and their scatter.

Noise is what two runs of the same program differ by: measured over several runs, else assumed and seen in the run.

By how much means over steps scatter is found by a bootstrap that draws blocks of steps, with all ranks of a step
together. Ranks of a job wait for each other, so what slows one in a step slows all of them; drawn one by one they would
count as independent. Steps that follow each other are alike as well, and are drawn in blocks that are long enough for
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
"""Blocks are not made longer than a part of the steps like this."""
FEWEST_STEPS = 8
"""Fewer do not say how much they are alike."""
USUAL, MOST_ALIKE = 0.2, 0.97
Statistic = Callable[[Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Times in ns of items that ranks spent time on."""

    items: Sequence[Hashable]
    values: Floats
    """Shape (steps, ranks, items); what a rank did not do in a step is 0."""
    alike: float | None = None
    """Correlation of a step with the one before it, as far as more steps of the run tell; None: by these steps."""

    @property
    def by_step(self) -> Any:
        """The mean over ranks; shape (steps, items)."""
        return self.values.mean(axis=1)

    def of(self, items: Mapping[Hashable, Sequence[Hashable]]) -> Samples:
        """Other items, each the sum of some of these; those that are not there are 0."""
        place = {item: index for index, item in enumerate(self.items)}
        columns = [self.values[:, :, [place[one] for one in parts if one in place]].sum(axis=2)
                   for parts in items.values()]
        empty = np.zeros((*self.values.shape[:2], 0))
        return replace(self, items=list(items), values=np.stack(columns, axis=2) if columns else empty)

    @classmethod
    def from_rows(cls, rows: pl.DataFrame, keys: Sequence[str], cells: pl.DataFrame) -> Samples:
        """From a table with `step`, `rank`, the columns that name an item, and `ns`, which adds up.

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
    """Steps that all of the ranks have, of a table with `step` and `rank`."""
    ranks = windows["rank"].n_unique()
    return windows.filter(pl.col("rank").n_unique().over("step") == ranks)


BETWEEN_RUNS, ON_PROCESSORS = 0.01, 0.05
"""Standard deviation between runs that is assumed where no runs measure it: where data lies in memory, which core and
which neighbours a rank has. The second is that of jobs that compute on processors, which share caches, clock rates and
often the machine with others: of 20 pairs of identical jobs the steps differed by 10 % (benchmarks/RESULTS.md)."""
OF_QUEUE, OF_QUEUE_ON_CORE = 0.4, 0.1
"""Further standard deviation, as a part of the share of a step in which ranks could have run and had no processor: of
times, and of the time on a processor itself. Identical jobs beside others on a busy machine show that
(benchmarks/RESULTS.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """How much runs differ by themselves, as a part of what is measured."""

    assumed: float = BETWEEN_RUNS
    """Of everything."""
    base_queued: Sequence[float | None] = (None,)
    """Of each run, the part of a step in which a thread had to wait for a processor; None where that is not known."""
    new_queued: Sequence[float | None] = (None,)
    of_queue: float = OF_QUEUE
    """How much of that is noise."""

    @property
    def is_measured(self) -> bool:
        """True where a side has several runs, which show by how much they differ."""
        return len(self.base_queued) + len(self.new_queued) > 2

    @property
    def by_queue(self) -> tuple[float, ...]:
        """Standard deviation of each run by what took its processors; 0 where that is not known."""
        return tuple(self.of_queue * (one or 0.0) for one in (*self.base_queued, *self.new_queued))

    @property
    def on_core(self) -> Noise:
        """That of the time on a processor."""
        return replace(self, of_queue=OF_QUEUE_ON_CORE)

    @property
    def without_queue(self) -> Noise:
        """That of what is compared with the rest of its own run, which shared the fate."""
        return replace(self, of_queue=0.0, assumed=min(self.assumed, BETWEEN_RUNS))


def mean(values: Floats) -> Any:
    """The mean over the axis of steps, the second last one."""
    return values.mean(axis=-2)


def correlation(series: Floats) -> float:
    """How much a step is like the one before it, rather more than less.

    What few steps say about that is biased towards independence, for which it is corrected, and uncertain: half of its
    standard error is added. Steps that are too few to say anything are taken to be somewhat alike.
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
    """Steps that are drawn together of so many.

    Where each is like the last one to the same degree, this length makes the error of a bootstrap of the mean least.
    """
    length = (2 * alike / (1 - alike ** 2)) ** (2 / 3) * (1.5 * number) ** (1 / 3)
    return int(np.clip(round(length), 1, max(number // FEWEST_BLOCKS, 1)))


def standard_errors(values: Floats, statistic: Statistic, alike: float | None = None) -> tuple[Floats, float]:
    """Of a statistic of each item, and their degrees of freedom.

    Args:
        values: Shape (steps, items).
        statistic: `mean` or `middle_half`.
        alike: Correlation of a step with the one before it, as far as more steps of the run tell; None: by these.

    Returns:
        Infinite errors and 0 degrees for fewer than two steps.
    """
    number, items = values.shape
    if number < 2:
        return np.full(items, np.inf), 0.0
    if alike is None:
        alike = correlation(values.sum(axis=1))
    spread = _drawn(values, statistic, block_length(alike, number))
    # blocks of few steps are too short to hold all that they have in common
    alone = _drawn(values, statistic, 1) if block_length(alike, number) > 1 else spread
    errors = np.maximum(spread, alone * np.sqrt((1 + alike) / (1 - alike)))
    # squares of steps are alike to the square of the degree to which steps are
    independent = max(number * (1 - alike ** 2) / (1 + alike ** 2), 2.0)
    return errors * np.sqrt(number / (number - 1)), independent - 1


def _drawn(values: Floats, statistic: Statistic, length: int) -> Any:
    """Scatter of the statistic over samples of blocks of so many steps."""
    number, found = len(values), []
    random = np.random.default_rng(0)
    each = int(np.clip(NUMBERS // max(values.size, 1), 1, DRAWS))
    for start in range(0, DRAWS, each):
        begins = random.integers(0, number, (min(each, DRAWS - start), -(-number // length), 1))
        drawn = ((begins + np.arange(length)) % number).reshape(len(begins), -1)[:, :number]
        found.append(statistic(values[drawn]))
    return np.concatenate(found).std(axis=0)


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
