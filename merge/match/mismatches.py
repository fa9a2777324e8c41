"""Describes what is wrong with matched collectives: ranks that are absent or called something else."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import polars as pl

from distprof.contract.collective_ops import EQUAL_INPUTS, POINT_TO_POINT, ROOTED
from distprof.merge.run.group_ranks import SIZE, with_lists
from distprof.units import numbered, size

PER_COLLECTIVE = ("num_ranks", "complete", "mismatch")
"""Columns that `judged` returns."""


def judged(rows: pl.DataFrame, *, ended: Collection[int], world_size: int,
           last: Mapping[int, int] | None = None) -> pl.DataFrame:
    """Determines for each collective who took part and what is wrong with it.

    Args:
        rows: Sorted by `collective`, which counts from 0 without gaps, with `group_id`, `op_id`, `place` (of the
            collective in its group) and the columns of `COLLECTIVES`; one row per rank, two for a send to itself.
        ended: Ranks that made no call after their last row. What any other absent rank did is unknown: its record began
            later, ended earlier, or lost the row.
        world_size: Number of ranks of the job.
        last: Rank -> last place of its rows, if all rows are of one group and some are elsewhere.

    Returns:
        `PER_COLLECTIVE`, a row per collective.
    """
    each = _flagged(_differing(rows), world_size)
    complete = ~each["is_bad"] & ~each["lacks"]
    odd = each.filter(~complete)
    texts: dict[int, list[str]] = defaultdict(list)
    if len(odd):
        of_bad = rows.filter(pl.col("collective").is_in(odd["collective"].to_list()))
        _add_differences(of_bad, odd, texts)
        _add_absent(of_bad, set(ended), _last_places(rows) if last is None else {
            (group, rank): place for group in rows["group_id"].unique() for rank, place in last.items()}, texts)
    mismatches: list[str | None] = [None] * len(each)
    for number, found in texts.items():
        mismatches[number] = "; ".join(found) or None
    return each.select("num_ranks").with_columns(
        complete.alias("complete"), pl.Series("mismatch", mismatches, pl.Categorical))


def num_mismatches(rows: pl.DataFrame) -> int:
    """Counts the collectives about which ranks disagree.

    Args:
        rows: As returned by `match`.
    """
    return rows.filter(pl.col("mismatch").is_not_null(), pl.col("matched_by").is_not_null())["collective"].n_unique()


def _differing(rows: pl.DataFrame) -> pl.DataFrame:
    """Returns per collective what it is, and which columns have several values in its rows, ignoring nulls."""
    values = {"ops": "op_id", "dtypes": "dtype_id", "sizes": "size_bytes", "roots": "root", "ranks": "rank"}
    some = rows.select(
        "collective", "op_id", "size_bytes", "rank", "matched_by",
        SIZE, pl.col("dtype").to_physical().alias("dtype_id"),
        pl.when(pl.col("op").is_in(ROOTED)).then("peer").alias("root"),
        pl.col("op").is_in(POINT_TO_POINT).alias("is_pair"), pl.col("op").is_in(EQUAL_INPUTS).alias("must_be_equal"))
    return some.group_by("collective", maintain_order=True).agg(
        pl.len().cast(pl.Int64).alias("num_rows"),
        pl.col("is_pair", "must_be_equal", "matched_by").first(),
        pl.col(SIZE).first().alias("num_members"),
        *((pl.col(column).min() != pl.col(column).max()).fill_null(False).alias(name)
          for name, column in values.items()))


def _flagged(each: pl.DataFrame, world_size: int) -> pl.DataFrame:
    is_pair = pl.col("is_pair")
    found = each.with_columns(
        pl.when(is_pair).then(pl.col("ranks").cast(pl.Int64) + 1).otherwise("num_rows").alias("num_ranks"),
        (pl.col("num_rows") != pl.when(is_pair).then(2).otherwise(pl.col("num_members").fill_null(world_size)))
        .alias("lacks"),
        (pl.col("ops") & ~is_pair).alias("bad_op"), pl.col("dtypes").alias("bad_dtype"),
        (pl.col("sizes") & ((pl.col("must_be_equal") & ~pl.col("ops")) | is_pair)).alias("bad_size"),
        pl.col("roots").alias("bad_root"))
    return found.with_columns((pl.any_horizontal("bad_op", "bad_dtype", "bad_size", "bad_root")
                               | pl.col("matched_by").is_null()).alias("is_bad"))


def _add_differences(rows: pl.DataFrame, odd: pl.DataFrame, texts: dict[int, list[str]]) -> None:
    for flag, column, sentence in DIFFERENCES:
        wanted = odd.filter(pl.col(flag))["collective"]
        if len(wanted):
            some = rows.filter(pl.col("collective").is_in(wanted.to_list()), pl.col(column).is_not_null())
            for key, part in some.group_by("collective", maintain_order=True):
                texts[int(key[0])].append(sentence(_ranks_by(part, column)))


def _ranks_by(rows: pl.DataFrame, column: str) -> list[tuple[Any, list[int]]]:
    """Returns values and the ranks that have them, most ranks first."""
    found: dict[Any, list[int]] = defaultdict(list)
    for value, rank in rows.select(column, "rank").sort("rank").iter_rows():
        found[value].append(rank)
    return sorted(found.items(), key=lambda item: (-len(item[1]), item[1]))


def ranks_named(ranks: Sequence[int]) -> str:
    """Formats ranks: `rank 3`, `ranks 0-2,5`."""
    return numbered("rank", sorted(set(ranks)))


def _ops_differ(found: list[tuple[Any, list[int]]]) -> str:
    (op, most), *others = found
    odd = ", ".join(f"{ranks_named(ranks)} called {other}" for other, ranks in others)
    return f"{odd} where {ranks_named(most)} called {op}"


def _values_differ(what: str, shown: Callable[[Any], str]) -> Callable[[list[tuple[Any, list[int]]]], str]:
    def sentence(found: list[tuple[Any, list[int]]]) -> str:
        return f"{what} differ: " + ", ".join(f"{shown(value)} on {ranks_named(ranks)}" for value, ranks in found)

    return sentence


DIFFERENCES: tuple[tuple[str, str, Callable[[list[tuple[Any, list[int]]]], str]], ...] = (
    ("bad_op", "op", _ops_differ),
    ("bad_dtype", "dtype", _values_differ("types", str)),
    ("bad_size", "size_bytes", _values_differ("sizes", size)),
    ("bad_root", "peer", _values_differ("roots", str)),
)
"""Column of `_flagged` that marks the difference, the column that differs, and the function that describes it."""


def _add_absent(odd: pl.DataFrame, ended: set[int], last: Mapping[tuple[int, int], int],
                texts: dict[int, list[str]]) -> None:
    """Names the ranks that are known not to have taken part."""
    each = odd.group_by("collective", maintain_order=True).agg(
        pl.col("op", "group_id", "place", "group_ranks", "peer", "rank", "matched_by").first(),
        pl.col("rank").alias("there"))
    for one in with_lists(each).iter_rows(named=True):
        if one["matched_by"] is None:
            texts[one["collective"]].append("its process group is unknown")
            continue
        if one["op"] in POINT_TO_POINT:
            if one["peer"] is None and len(one["there"]) < 2:
                texts[one["collective"]].append("the peer is unknown")
            continue
        absent = (set(one["group_ranks"] or ()) & ended) - set(one["there"])
        never = [rank for rank in absent if one["place"] > last.get((one["group_id"], rank), -1)]
        texts[one["collective"]] += [f"{ranks_named(never)} never entered"] if never else []


def _last_places(rows: pl.DataFrame) -> dict[tuple[int, int], int]:
    """Returns (group, rank) -> last place of its rows."""
    places = rows.select("op", "group_id", "rank", "place").filter(~pl.col("op").is_in(POINT_TO_POINT))
    found = places.group_by("group_id", "rank").agg(pl.col("place").max())
    return {(group, rank): place for group, rank, place in found.iter_rows()}
