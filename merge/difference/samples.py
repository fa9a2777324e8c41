"""What was measured of a run: times of some items, of each step and rank that counts."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Times in ns of items that ranks spent time on."""

    items: Sequence[Hashable]
    values: Any
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
