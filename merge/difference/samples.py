"""What was measured of a run: times of some items, of each step and rank that counts, and their noise.

Noise is what two runs of the same program differ by: measured over several runs, else assumed and seen in the run.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from distprof.arrays import Floats


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
