"""The rank that spends most time on what rows have in common, and whether that may be chance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from distprof.merge.chance.significance import chances

MOST_NUMBERS = 10_000_000
"""Numbers that are dealt out to ranks to tell chance: of many ranks and steps, those of fewer groups."""
DEALT = 2_000
MOST_GROUPS = 100
NAMES = {"slowest_rank": pl.Int64(), "slowest_ratio": pl.Float64(), "slowest_p_value": pl.Float64()}


def spread(rows: pl.DataFrame, keys: Sequence[str], busy: str) -> pl.DataFrame:
    """Compares ranks in each group.

    Args:
        rows: Of `run_operators`, or added up by `keys`, rank and step.
        keys: What rows of a group share.
        busy: The column of self time.

    Returns:
        `keys`; `slowest_rank` has most self time, `slowest_ratio` is that of the median rank's, null of one rank;
        `slowest_p_value`: how likely some rank would be as slow in some group if all were equal. Null without three
        steps that all ranks have, and for groups that take little of the time.
    """
    if "rank" in keys or rows["rank"].n_unique() < 2:
        return rows.select(keys).unique().with_columns(pl.lit(None, kind).alias(name) for name, kind in NAMES.items())
    in_steps = rows.group_by([*dict.fromkeys([*keys, "rank", "step"])]).agg(pl.col(busy).sum())
    each = in_steps.group_by([*keys, "rank"]).agg(pl.col(busy).sum()).sort("rank")
    median = pl.col(busy).median()
    found = each.group_by(keys).agg(
        slowest_rank=pl.when(pl.len() > 1).then(pl.col("rank").get(pl.col(busy).arg_max())),
        slowest_ratio=pl.when((pl.len() > 1) & (median > 0)).then(pl.col(busy).max() / median))
    return found.join(_significance(in_steps, keys, busy), on=keys, how="left", nulls_equal=True)


def _significance(in_steps: pl.DataFrame, keys: Sequence[str], busy: str) -> pl.DataFrame:
    ranks, timed = in_steps["rank"].unique().sort(), in_steps.filter(pl.col("step").is_not_null())
    common = timed.group_by("step").agg(pl.col("rank").n_unique()).filter(pl.col("rank") == len(ranks))["step"].sort()
    size = max(len(ranks) * len(common) * DEALT, 1)
    groups = timed.group_by(keys).agg(pl.col(busy).sum()).top_k(
        min(max(MOST_NUMBERS // size, 1), MOST_GROUPS), by=busy).select(keys).with_row_index("group")
    work = np.zeros((len(ranks), len(common), len(groups)))
    own = timed.join(groups, on=keys, nulls_equal=True).filter(pl.col("step").is_in(common.implode()))
    place = (ranks.search_sorted(own["rank"]), common.search_sorted(own["step"]), own["group"])
    work[tuple(one.to_numpy() for one in place)] = own[busy].to_numpy()
    found: Any = chances(work - np.median(work, axis=0)) if len(groups) else None
    values = pl.Series("slowest_p_value", found, pl.Float64()) if found is not None else pl.lit(None, pl.Float64())
    return groups.drop("group").with_columns(slowest_p_value=values)
