"""The rank that spends most time on what rows have in common, and whether that may be chance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl

from distprof.merge.chance.significance import chances
from distprof.merge.operators.sums.run_sums import RunSums

MOST_NUMBERS = 10_000_000
"""Numbers that are dealt out to ranks to tell chance: of many ranks and steps, those of fewer groups."""
DEALT = 2_000
MOST_GROUPS = 100
NAMES = {"slowest_rank": pl.Int64(), "slowest_ratio": pl.Float64(), "slowest_p_value": pl.Float64()}


def spread(sums: RunSums, busy: str) -> pl.DataFrame:
    """Compares ranks in each group.

    Args:
        sums: Of a run.
        busy: The column of self time.

    Returns:
        `group`, its place; `slowest_rank` has most self time, the first of several; `slowest_ratio` is that of the
        median rank's, null of one rank; `slowest_p_value`: how likely some rank would be as slow in some group if all
        were equal. Null without three steps that all ranks have, and for groups that take little of the time. No rows
        where there is nothing to compare.
    """
    ranks = sums.ranks
    if "rank" in sums.keys or len(ranks) < 2:
        return pl.DataFrame(schema={"group": pl.UInt32(), **NAMES})
    each, median = _added(sums.busy(busy), ["group", "rank"], pl.col(busy).sum()), pl.col(busy).median()
    found = each.group_by("group").agg(
        slowest_rank=pl.when(pl.len() > 1).then(pl.col("rank").filter(pl.col(busy) == pl.col(busy).max()).min()),
        slowest_ratio=pl.when((pl.len() > 1) & (median > 0)).then(pl.col(busy).max() / median))
    return found.join(_significance(sums, pl.Series(ranks), busy), on="group", how="left")


def _added(parts: Iterable[pl.DataFrame], keys: Sequence[str], what: pl.Expr) -> pl.DataFrame:
    """Of each part: `what` of the rows that share keys."""
    return pl.concat([part.group_by(keys).agg(what) for part in parts])


def _significance(sums: RunSums, ranks: pl.Series, busy: str) -> pl.DataFrame:
    def timed() -> Iterator[pl.DataFrame]:
        return (part.filter(pl.col("step").is_not_null()) for part in sums.busy(busy))

    of_steps = _added(timed(), ["step"], pl.col("rank").n_unique().cast(pl.Int64)).group_by("step").sum()
    common = of_steps.filter(pl.col("rank") == len(ranks))["step"].sort()
    size = max(len(ranks) * len(common) * DEALT, 1)
    largest = _added(timed(), ["group"], pl.col(busy).sum()).group_by("group").sum().sort(
        busy, "group", descending=[True, False])
    groups = largest.head(min(max(MOST_NUMBERS // size, 1), MOST_GROUPS)).select("group")
    work = np.zeros((len(ranks), len(common), len(groups)))
    for part in timed():
        own = part.join(groups.with_row_index("column"), on="group").filter(pl.col("step").is_in(common.implode()))
        place = (ranks.search_sorted(own["rank"]), common.search_sorted(own["step"]), own["column"])
        work[tuple(one.to_numpy() for one in place)] = own[busy].to_numpy()
    found: Any = chances(work - np.median(work, axis=0)) if len(groups) else None
    values = pl.Series("slowest_p_value", found, pl.Float64()) if found is not None else pl.lit(None, pl.Float64())
    return groups.with_columns(slowest_p_value=values)
