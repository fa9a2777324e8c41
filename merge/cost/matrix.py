"""Counts the bytes that ranks send each other, and states what each count assumes.

What a rank sends in a ring of n ranks to the next rank of its group, for an input of b bytes per rank:

    all_reduce       2 b (n - 1) / n     a reduce-scatter and an all-gather
    reduce_scatter   b (n - 1) / n
    all_gather       b (n - 1), where b is the mean over the ranks
    broadcast        b from each rank except the one before the root
    reduce           b from each rank except the root

Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009. A gather sends from each
rank to the root, a scatter from the root an even share to each rank, an all_to_all to each rank what its splits say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import polars as pl

from distprof.arrays import Floats
from distprof.contract.collective_ops import ROWS, CollectiveOp
from distprof.merge.run.group_ranks import SIZE, with_lists

Bytes = Floats
EXACT, EVEN, RING, STAR = "exact", "assumes an even split", "assumes a ring", "assumes a star"
"""What a count assumes."""
COLUMNS = {"source": pl.Int64, "target": pl.Int64, "op": pl.String, "basis": pl.String, "num_bytes": pl.Float64,
           "num_ops": pl.Int64}


def bytes_between(rows: pl.DataFrame) -> pl.DataFrame:
    """Sums what ranks send each other.

    Args:
        rows: `MERGED_COLLECTIVES`. The row of a rank says what it sends, even if those of others are missing; rows
            without size, group or peer are left out.

    Returns:
        A row per `source`, `target` (global ranks), op and basis: `num_bytes`, a whole number if the basis is exact,
        and the number of ops. The basis is exact, or what was assumed: an even split, a ring, a star.
    """
    parts = [_pairs(rows), *(_spread(rows, op) for op in ROWS if op.traffic in _RULES)]
    found = pl.concat([part for part in parts if len(part)] or [pl.DataFrame(schema=COLUMNS)])
    return found.group_by("source", "target", "op", "basis").agg(
        pl.col("num_bytes").sum(), pl.col("num_ops").sum()).sort("source", "target", "op", "basis").select(*COLUMNS)


UNEVEN: dict[str, Any] = {
    "group": pl.String, "group_description": pl.String, "group_ranks": pl.List(pl.Int64), "way": pl.String,
    "num_calls": pl.Int64, "imbalance": pl.Float64, "rank": pl.Int64, "num_most": pl.Int64, "num_bytes": pl.Float64,
    "mean_bytes": pl.Float64}
"""Columns that `uneven_exchanges` returns."""


def uneven_exchanges(rows: pl.DataFrame) -> pl.DataFrame:
    """Measures how unevenly all_to_alls with splits divide data among ranks of a group, including what each rank keeps.

    Args:
        rows: `MERGED_COLLECTIVES`. Only calls with known splits of all ranks count.

    Returns:
        `UNEVEN`, two rows per group. `way`: received or sent; `imbalance`: the most that a rank has in a call divided
        by the mean over ranks, averaged over calls with data; `rank`: the rank that has the most in most calls,
        `num_most` of `num_calls`; `num_bytes`: what it has per call; `mean_bytes`: what a rank has per call.
    """
    known = rows.filter(pl.col("op") == "all_to_all", pl.col("split_bytes").list.len() == pl.col(SIZE)).filter(
        pl.len().over("collective") == pl.col(SIZE))
    if known.is_empty():
        return pl.DataFrame(schema=UNEVEN)
    group = known.select("collective", *(pl.col(name).cast(pl.String) for name in (
        "group", "group_description", "group_ranks"))).unique("collective")
    each = with_lists(known).select("collective", sent=pl.col("rank"), received=pl.col("group_ranks"),
                                    num_bytes=pl.col("split_bytes")).explode("received", "num_bytes")
    found = pl.concat([_of_calls(_of_ranks(each, way).join(group, on="collective"), way)
                       for way in ("received", "sent")])
    return with_lists(found.sort("group", "group_ranks", "way")).select(*UNEVEN)


def _of_ranks(each: pl.DataFrame, way: str) -> pl.DataFrame:
    """Returns what each rank has in each call."""
    held = each.group_by("collective", rank=way).agg(pl.col("num_bytes").sum())
    most, mean = (getattr(pl.col("num_bytes"), what)().over("collective") for what in ("max", "mean"))
    return held.with_columns(most=most, mean=mean, is_most=pl.col("num_bytes") == most).filter(pl.col("mean") > 0)


def _of_calls(held: pl.DataFrame, way: str) -> pl.DataFrame:
    of_group = ["group", "group_description", "group_ranks"]
    ranks = held.group_by(*of_group, "rank").agg(num_most=pl.col("is_most").sum().cast(pl.Int64),
                                                 num_bytes=pl.col("num_bytes").mean())
    first = ranks.sort("num_most", "num_bytes", "rank", descending=[True, True, False]).unique(
        of_group, keep="first", maintain_order=True)
    calls = held.group_by(*of_group).agg(num_calls=pl.col("collective").n_unique().cast(pl.Int64),
                                         imbalance=(pl.col("most") / pl.col("mean")).mean(),
                                         mean_bytes=pl.col("num_bytes").mean())
    return calls.join(first, on=of_group, nulls_equal=True).with_columns(way=pl.lit(way))


def matrix_of(between: pl.DataFrame, world_size: int) -> Bytes:
    """Returns the bytes from each rank (row) to each rank (column), from the result of `bytes_between`."""
    matrix = np.zeros((world_size, world_size))
    np.add.at(matrix, (between["source"].to_numpy(), between["target"].to_numpy()), between["num_bytes"].to_numpy())
    return matrix


def _pairs(rows: pl.DataFrame) -> pl.DataFrame:
    """Returns sends, and receives whose send was not found."""
    pairs = rows.filter(pl.col("op").is_in(["send", "recv"]), pl.col("peer").is_not_null(),
                        pl.col("size_bytes").is_not_null())
    sends = pairs.filter(pl.col("op") == "send").select(
        pl.col("rank").alias("source"), pl.col("peer").alias("target"), "size_bytes")
    receives = pairs.filter(pl.col("op") == "recv", pl.col("num_ranks") < 2, pl.col("peer") != pl.col("rank")).select(
        pl.col("peer").alias("source"), pl.col("rank").alias("target"), "size_bytes")
    return pl.concat([sends, receives]).select(
        "source", "target", pl.lit("send").alias("op"), pl.lit(EXACT).alias("basis"),
        pl.col("size_bytes").cast(pl.Float64).alias("num_bytes"), pl.lit(1, pl.Int64).alias("num_ops"))


def _spread(rows: pl.DataFrame, op: CollectiveOp) -> pl.DataFrame:
    """Returns what each rank of a group sends in all calls of an op."""
    some = rows.filter(pl.col("op") == op.name, pl.col("size_bytes").is_not_null(), pl.col("group_ranks").is_not_null())
    if some.is_empty():
        return pl.DataFrame(schema=COLUMNS)
    if op.traffic == "ring of all":
        some = _of_mean_size(some)
    if op.traffic == "to each":
        known = some.filter(pl.col("split_bytes").list.len() == pl.col(SIZE))
        parts = [_by_splits(known, op), _summed(some.join(known, on=["collective", "rank"], how="anti"), op)]
        return pl.concat(parts)
    return _summed(some, op)


def _of_mean_size(rows: pl.DataFrame) -> pl.DataFrame:
    """Replaces sizes by their mean over ranks: what a ring passes on comes from all ranks."""
    mean = rows.group_by("collective").agg(pl.col("size_bytes").mean().alias("mean"))
    return rows.join(mean, on="collective", how="left").with_columns(pl.col("mean").alias("size_bytes")).drop("mean")


def _by_splits(rows: pl.DataFrame, op: CollectiveOp) -> pl.DataFrame:
    """Returns the bytes by the splits of each rank, without what it keeps."""
    if rows.is_empty():
        return pl.DataFrame(schema=COLUMNS)
    each = with_lists(rows).select(
        pl.col("rank").alias("source"), pl.col("group_ranks").alias("target"), "split_bytes").explode(
        "target", "split_bytes").filter(pl.col("source") != pl.col("target"))
    return each.group_by("source", "target").agg(
        pl.col("split_bytes").sum().cast(pl.Float64).alias("num_bytes"), pl.len().cast(pl.Int64).alias("num_ops"),
    ).select("source", "target", pl.lit(op.name).alias("op"), pl.lit(EXACT).alias("basis"), "num_bytes", "num_ops")


def _summed(rows: pl.DataFrame, op: CollectiveOp) -> pl.DataFrame:
    """Sums the sizes of equal groups first, because there are few of them."""
    sums = with_lists(rows.group_by("rank", "peer", "group_ranks").agg(
        pl.col("size_bytes").sum(), pl.len().alias("count")))
    basis, sent = _RULES[op.traffic or ""]
    found = [(rank, target, op.name, basis, num_bytes, count)
             for rank, peer, size, count, members in sums.select(
                 "rank", "peer", "size_bytes", "count", "group_ranks").iter_rows()
             for target, num_bytes in sent(members, rank, peer, float(size))
             if len(members) > 1 and rank in members and num_bytes]
    return pl.DataFrame(found, schema=COLUMNS, orient="row")


Sent = list[tuple[int, float]]


def _next(members: Sequence[int], rank: int) -> int:
    return members[(members.index(rank) + 1) % len(members)]


def _around(factor: Callable[[int], float]) -> Callable[[Sequence[int], int, int | None, float], Sent]:
    def sent(members: Sequence[int], rank: int, _root: int | None, size: float) -> Sent:
        return [(_next(members, rank), size * factor(len(members)))] if rank in members else []

    return sent


def _from_root(members: Sequence[int], rank: int, root: int | None, size: float) -> Sent:
    """Returns what a rank sends along the ring; the rank before the root sends nothing."""
    following = _next(members, rank)
    return [] if root is None or following == root else [(following, size)]


def _to_root(members: Sequence[int], rank: int, root: int | None, size: float) -> Sent:
    return [] if root is None or rank == root else [(_next(members, rank), size)]


def _all_to_root(members: Sequence[int], rank: int, root: int | None, size: float) -> Sent:
    del members
    return [] if root is None or rank == root else [(root, size)]


def _root_to_all(members: Sequence[int], rank: int, root: int | None, size: float) -> Sent:
    return [(target, size / len(members)) for target in members if target != rank] if rank == root else []


def _to_each(members: Sequence[int], rank: int, _root: int | None, size: float) -> Sent:
    return [(target, size / len(members)) for target in members if target != rank]


_RULES: dict[str, tuple[str, Callable[[Sequence[int], int, int | None, float], Sent]]] = {
    "ring twice": (RING, _around(lambda count: 2 * (count - 1) / count)),
    "ring": (RING, _around(lambda count: (count - 1) / count)),
    "ring of all": (RING, _around(lambda count: count - 1)),
    "from root": (RING, _from_root),
    "to root": (RING, _to_root),
    "all to root": (STAR, _all_to_root),
    "root to all": (STAR, _root_to_all),
    "to each": (EVEN, _to_each),
}
"""`traffic` of an op -> basis, and a function that returns which bytes a rank sends to whom for an input of some
size."""
