"""Rows of operators that share keys, added up: of one rank where it is read, and of all ranks as they come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from distprof.merge.operators.amounts import COSTS, MEMORY
from distprof.merge.operators.categories import with_categories
from distprof.merge.operators.sums.real_sums import sums_of

BY = {"op": "op", "type": "type", "category": "category", "module": "module_path", "class": "class_name",
      "shape": "shapes", "dtype": "dtypes", "phase": "phase", "rank": "rank", "stream": "stream", "step": "step",
      "stack": "stack"}
"""What `--by` takes -> column."""
KEYS = tuple(BY.values())
WHOLE = ("calls", "host_ns", "self_host_ns", "device_ns", "self_device_ns", "duration_ns")
"""Sums of integers, which are the same in whatever order they are added."""
REAL = ("squared_ns", "compute_ns", "memory_ns", "least_ns")
"""Sums of others, which are not."""
BUSY = ("self_host_ns", "self_device_ns")
WORKED = tuple(f"{what}_ns_on_{where}" for what in ("counted", "limited") for where in ("host", "device"))
"""Time of the calls whose FLOPs are known, and of those whose least time is."""
IN_STEP = ("group", "rank", "step")


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedUp:
    """Of one rank or of several."""

    groups: pl.DataFrame
    """A row for all that share the keys, in the order of their first rows: `KEYS`, null where they are not the same
    for all; whether they are; sums; `num_ranks`."""
    in_steps: pl.DataFrame
    """A row for each group, rank and step: `IN_STEP`, and `BUSY` in types as small as the numbers allow."""


def added_up(rows: pl.DataFrame, keys: Sequence[str]) -> AddedUp:
    """Adds rows up.

    Args:
        rows: Of `run_operators`: all those of each rank that there is.
        keys: Columns, of `KEYS`.
    """
    rows = with_categories(rows)
    counted, limited = (pl.col(name).is_not_null() for name in ("flops", "compute_ns"))
    duration = pl.when(pl.col("host_ns") > 0).then("host_ns").otherwise("device_ns")
    rows = rows.with_columns(duration_ns=duration, least_ns=pl.max_horizontal("compute_ns", "memory_ns"), **{
        f"{what}_ns_on_{where}": pl.when(has).then(f"{where}_ns") for what, has in (
            ("counted", counted), ("limited", limited)) for where in ("host", "device")})
    several = {name: pl.col(name).n_unique() > 1 for name in _away(keys)}
    groups = _grouped(rows, keys, several, num_ranks=pl.col("rank").n_unique().cast(pl.Int64))
    numbers = numbers_of(rows, groups, keys)
    real = {name: sums_of(numbers.to_numpy(), rows[name].fill_null(0.0).to_numpy(), len(groups)) for name in REAL}
    in_steps = rows.with_columns(group=numbers).group_by(IN_STEP, maintain_order=True).agg(pl.col(*BUSY).sum())
    return AddedUp(groups=groups.with_columns(**real), in_steps=small(in_steps))


def joined(groups: Sequence[pl.DataFrame], keys: Sequence[str]) -> pl.DataFrame:
    """Adds up `groups` of different ranks, but for `REAL`; those of the first keep their places."""
    several = {name: (pl.col(name).n_unique() > 1) | pl.col(mixed(name)).any() for name in _away(keys)}
    return _grouped(pl.concat(groups), keys, several, num_ranks=pl.col("num_ranks").sum())


def _grouped(rows: pl.DataFrame, keys: Sequence[str], several: Mapping[str, pl.Expr], num_ranks: pl.Expr) -> (
        pl.DataFrame):
    """A row for all that share the keys; `several`: whether rows have several values of a column."""
    found = rows.group_by(keys, maintain_order=True).agg(
        *_sums(), num_ranks=num_ranks, **{name: pl.col(name).first() for name in several},
        **{mixed(name): condition for name, condition in several.items()})
    return found.with_columns(pl.when(~pl.col(mixed(name))).then(name).alias(name) for name in several)


def numbers_of(rows: pl.DataFrame, groups: pl.DataFrame, keys: Sequence[str]) -> pl.Series:
    """The place among the groups of each row."""
    places = groups.select(keys).with_row_index("group")
    return rows.select(keys).join(places, on=keys, how="left", nulls_equal=True, maintain_order="left")["group"]


def small(in_steps: pl.DataFrame) -> pl.DataFrame:
    """In the smallest types that hold its numbers: there is one for all that a job did."""
    return in_steps.select(one.shrink_dtype() for one in in_steps)


def mixed(name: str) -> str:
    """The column that says whether rows with several values of a column were added up."""
    return f"mixed {name}"


def _away(keys: Sequence[str]) -> list[str]:
    return [name for name in KEYS if name not in keys]


def _sums() -> list[pl.Expr]:
    return [pl.col(*WHOLE, *WORKED).sum(), pl.col("min_ns").min(), pl.col("max_ns").max(), *(
        pl.when(pl.col(name).is_not_null().any()).then(pl.col(name).sum()).alias(name) for name in (*COSTS, *MEMORY))]
