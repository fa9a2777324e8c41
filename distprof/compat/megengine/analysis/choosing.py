"""Selects, aggregates and sorts the operators to print."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import polars as pl

from distprof.errors import UsageError

COLUMNS = ("time", "computation", "memory", "flops", "bandwidth", "opr_id", "in_shapes", "out_shapes")
"""Columns that `--order-by` accepts."""
SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The flags for selecting, aggregating and sorting."""

    types: Sequence[str] = ()
    opr_name: str | None = None
    """Regular expression for the beginning of the name."""
    input_dtype: str | None = None
    ranks: Sequence[int] = ()
    end: str = "end"
    """end: whole time; kern: the wait before the kernel."""
    min_time: float = float("-inf")
    max_time: float = float("inf")
    aggregate: str | None = None
    """max, min, sum or mean."""
    aggregate_by: str | None = None
    """Key of the groups to aggregate: type or rank; None for all operators together."""
    order_by: str = "time"
    """One of `COLUMNS`, largest first; with a leading +, smallest first."""


def of_ranks(rows: pl.DataFrame, ranks: Sequence[int]) -> pl.DataFrame:
    """Returns the operators of some ranks; of all ranks if `ranks` is empty.

    Raises:
        UsageError: A rank does not exist.
    """
    known = rows["rank"].unique().sort().to_list()
    for one in ranks:
        if one not in known:
            raise UsageError(f"no rank {one}; --rank can be {_some(known)}")
    return rows.filter(pl.col("rank").is_in(list(ranks))) if ranks else rows


def filtered(rows: pl.DataFrame, choice: Choice) -> pl.DataFrame:
    """Returns operators that meet the conditions on type, name and dtype.

    Raises:
        UsageError: The regular expression is invalid.
    """
    conditions = list[pl.Expr]()
    if choice.types:
        wanted = list(choice.types)
        conditions.append(pl.col("type").is_in(wanted) | pl.col("operator").is_in(wanted))
    if choice.opr_name is not None:
        names = [name for name in rows["name"].unique() if _expression(choice.opr_name).match(name)]
        conditions.append(pl.col("name").is_in(names))
    if choice.input_dtype is not None:
        conditions.append(pl.col("dtypes").list.eval(pl.element() == choice.input_dtype).list.any())
    return rows.filter(conditions) if conditions else rows


def missing_types(rows: pl.DataFrame, choice: Choice) -> list[str]:
    """Returns a sentence for each selected type that no operator has."""
    known = [*rows["type"].unique().sort(), *rows["operator"].drop_nulls().unique().sort()]
    sentences = list[str]()
    for one in choice.types:
        if one not in known:
            near = get_close_matches(one, known, n=3)
            sentences.append(f"no operator has type {one}; "
                             + (f"did you mean {' or '.join(near)}?" if near else f"there are {_some(known)}"))
    return sentences


def records(rows: pl.DataFrame, choice: Choice, side: str) -> pl.DataFrame:
    """Returns the rows of a table.

    Args:
        rows: Result of `filtered`.
        choice: Limits of time, aggregation and order.
        side: device or host.

    Returns:
        `rank`, `name`, `type`, `id`, `count`, `time`, `computation`, `memory`, `flops`, `bandwidth`, and shapes. If
        operators are aggregated, `rank`, `name`, `id` and shapes are null.

    Raises:
        UsageError: The column to sort by is unknown.
    """
    column, ascending = _order(choice.order_by)
    time = pl.col("time")
    found = rows.with_columns(pl.col(f"{side}_{choice.end}").alias("time")).filter(
        time.is_not_null(), time >= choice.min_time, time <= choice.max_time)
    found = _added_up(found, choice) if choice.aggregate else found.with_columns(count=pl.lit(1, pl.Int64))
    found = found.with_columns(
        opr_id=pl.col("id").cast(pl.Int64, strict=False),
        **{rate: pl.when(time > 0).then(pl.col(of) / time) for rate, of in (("flops", "computation"),
                                                                          ("bandwidth", "memory"))})
    return found.sort(column, descending=not ascending, nulls_last=True, maintain_order=True)


def _added_up(rows: pl.DataFrame, choice: Choice) -> pl.DataFrame:
    by = choice.aggregate_by or "all"
    keyed = rows.with_columns(all=pl.lit("all"), key=pl.col(by) if by != "all" else pl.lit("all"))

    def of(name: str) -> pl.Expr:
        known = pl.col(name).drop_nulls()
        whole = {"max": known.max(), "min": known.min(), "sum": known.sum(), "mean": known.mean()}
        return pl.when(known.len() > 0).then(whole[choice.aggregate or ""]).alias(name)

    found = keyed.group_by("key", maintain_order=True).agg(
        of("time"), of("computation"), of("memory"), count=pl.len().cast(pl.Int64))
    return found.select(
        rank=pl.lit(None, pl.Int64), name=pl.lit(None, pl.String),
        type=(pl.format("rank {}", "key") if by == "rank" else pl.col("key")), id=pl.lit(None, pl.String),
        count="count", time="time", computation="computation", memory="memory",
        **{name: pl.lit(None, pl.String) for name in ("in_shapes", "in_layouts", "out_shapes")})


def _order(text: str) -> tuple[str, bool]:
    name = text.removeprefix("+")
    if name not in COLUMNS:
        near = get_close_matches(name, COLUMNS, n=2)
        raise UsageError(f"--order-by takes one of {', '.join(COLUMNS)}, with a leading + for ascending, not "
                         f"{text!r}", hint=f"did you mean {' or '.join(near)}?" if near else None)
    return name, text.startswith("+")


def _expression(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise UsageError(f"--opr-name {pattern!r} is not a valid regular expression: {error}") from None


def _some(known: Sequence[object]) -> str:
    return ", ".join(map(str, known[:SHOWN])) + (", ..." if len(known) > SHOWN else "") or "none"
