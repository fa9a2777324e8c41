"""Measures matched collectives on the clock of the run: the columns of the merged table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping

import numpy as np
import polars as pl

from distprof.merge.clock.common_times import on_common_clock
from distprof.merge.clock.model import Clock
from distprof.merge.cost.measures import with_costs

TIMES = ("enqueue_ns", "start_ns", "end_ns", "wait_start_ns", "wait_end_ns")


def measured_collectives(matched: pl.DataFrame, clock: Clock, hosts: Mapping[int, Hashable]) -> pl.DataFrame:
    """Every collective on every rank: the columns of `MERGED_COLLECTIVES`, sorted by `collective` and rank.

    Args:
        matched: Rows as `match` gives them, times as the ranks have them.
        clock: Of the run.
        hosts: Equal on ranks of one machine; None where it is not known.

    Returns:
        The rows on the clock of the run, collectives numbered by their first arrival.
    """
    return with_costs(_by_arrival(on_common_clock(clock, matched, TIMES)), clock, hosts)


def _by_arrival(rows: pl.DataFrame) -> pl.DataFrame:
    first = rows.group_by("collective", maintain_order=True).agg(
        pl.coalesce("start_ns", "enqueue_ns").min().alias("first_ns"))
    order = first.sort("first_ns", "collective", nulls_last=True)["collective"].to_numpy()
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    number = place[rows["collective"].to_numpy()]
    order = np.argsort(number, kind="stable")
    return rows[order].with_columns(pl.Series("collective", number[order]).set_sorted())


def most_often_late(pieces: Iterable[pl.DataFrame]) -> int | None:
    """The rank that came last into most collectives; None where none is known.

    Args:
        pieces: `MERGED_COLLECTIVES`.
    """
    counts = Counter[int]()
    for rows in pieces:
        late = rows.filter(pl.col("late_rank") == pl.col("rank"))["rank"]
        counts.update(dict(late.value_counts().iter_rows()))
    return min(counts, key=lambda rank: (-counts[rank], rank), default=None)
