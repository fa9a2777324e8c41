"""Communication of a run: a run comes in, matched and measured rows with the columns of the contract go out."""

from __future__ import annotations

import numpy as np
import polars as pl

from distprof.merge.cost.measures import measure
from distprof.merge.match.matching import match
from distprof.merge.match.recorded_rows import recorded
from distprof.merge.run.run_model import Run, sampled
from distprof.merge.run.tables import on_common_clock

TIMES = ("enqueue_ns", "start_ns", "end_ns")


def collectives_of(run: Run) -> pl.DataFrame:
    """Every collective on every rank: the columns of `MERGED_COLLECTIVES`, sorted by `collective` and rank.

    Rows are matched first, by what the ranks say; then times are put on the clock of the run, and measured.
    """
    return measured(run, _remarked(run, matched(run)))


def _remarked(run: Run, rows: pl.DataFrame) -> pl.DataFrame:
    """The rows; what of them is inferred is told in the run's remarks."""
    if run.kind == "traces":
        from distprof.merge.match.foreign import remarks_of

        run.remarks.extend(remark for remark in remarks_of(rows) if remark not in run.remarks)
    return rows


def matched(run: Run) -> pl.DataFrame:
    """The rows with the collective each belongs to, times as the ranks have them; numbers mean nothing yet."""
    found = recorded(run)
    return match(found.rows, ranks=found.ranks, world_size=run.world_size)


def measured(run: Run, rows: pl.DataFrame) -> pl.DataFrame:
    """Numbers matched rows by their first arrival on the clock of the run, and measures them."""
    hosts = {rank.number: sampled(rank).host for rank in run.ranks}
    rows = measure(_by_arrival(on_common_clock(run, rows, TIMES)), run.clock, hosts)
    # lists are most of the memory: they are not sorted, but made anew
    names, members = rows.columns, _members(rows)
    rows = rows.drop("group_ranks").sort("collective", "rank", maintain_order=True)
    return rows.with_columns(members[rows["collective"]]).select(names)


def _members(rows: pl.DataFrame) -> pl.Series:
    """`group_ranks` of each collective."""
    return rows.group_by("collective").agg(pl.col("group_ranks").first()).sort("collective")["group_ranks"]


def _by_arrival(rows: pl.DataFrame) -> pl.DataFrame:
    first = rows.group_by("collective").agg(pl.coalesce("start_ns", "enqueue_ns").min().alias("first_ns"))
    order = first.sort("first_ns", "collective", nulls_last=True)["collective"].to_numpy()
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return rows.with_columns(pl.Series("collective", place[rows["collective"].to_numpy()], pl.Int64))


def most_often_late(rows: pl.DataFrame) -> int | None:
    """The rank that came last into most collectives; None where none is known.

    Args:
        rows: As `collectives_of` gives them.
    """
    late = rows.filter(pl.col("late_rank") == pl.col("rank"))["rank"]
    counts = late.value_counts().sort("count", "rank", descending=[True, False])
    return None if counts.is_empty() else int(counts["rank"][0])
