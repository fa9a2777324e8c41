"""Finds which rows of different ranks are one collective, or a send and its receive.

Times are not used, so that matches hold whatever the clocks of the ranks show.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import polars as pl

from distprof.contract.collective_ops import EQUAL_INPUTS, POINT_TO_POINT
from distprof.merge.match.groups import NONE, Calls, Integers, dense, keys_of, occurrence, pack
from distprof.merge.match.mismatches import judged
from distprof.merge.match.send_recv import transfer_numbers

MATCHED = ("collective", "matched_by", "num_ranks", "complete", "mismatch")
"""Columns that matching adds."""
METHODS = ("id", "sequence", "label", "order", "peer", None)
"""Values of `matched_by`; None where the group of a row is unknown, and it stays alone."""
ALONE = -1
"""`lane` of such a row."""


def match(rows: pl.DataFrame, *, ranks: Collection[int], world_size: int) -> pl.DataFrame:
    """Finds the collective that each row belongs to.

    Args:
        rows: As in `RankRows`; those of a rank in the order of issue.
        ranks: Of which it is known what they did, with rows or without.
        world_size: Ranks of the job.

    Returns:
        The rows and `MATCHED`, sorted by `collective` and rank; `collective` counts from 0, in no order that means
        anything.
    """
    if rows.is_empty():
        return rows.with_columns(pl.lit(None, kind).alias(name) for name, kind in zip(
            MATCHED, (pl.Int64, pl.Categorical, pl.Int64, pl.Boolean, pl.Categorical), strict=True))
    coded = _coded(rows)
    is_pair = coded["op"].is_in(POINT_TO_POINT)
    coded = coded.with_columns(_corrected(coded, is_pair))
    is_alone = (coded["lane"] == ALONE).fill_null(False) if "lane" in coded.columns else is_pair & False
    together, pairs, alone = (np.flatnonzero(mask.to_numpy()) for mask in (
        ~is_pair & ~is_alone, is_pair, ~is_pair & is_alone))
    number, place = np.zeros(len(coded), np.int64), np.zeros(len(coded), np.int64)
    methods = np.full(len(coded), METHODS.index(None))
    taken = 0
    if len(together):
        calls = _calls(coded.filter(~is_pair & ~is_alone))
        key, method = keys_of(calls)
        place[together] = key
        number[together] = dense(pack(calls.group, key))
        methods[together] = np.array([METHODS.index(name) for name in method])[calls.group]
        taken = int(number.max()) + 1
    if len(pairs):
        number[pairs] = transfer_numbers(coded[pairs].with_columns(
            content=_code(coded[pairs].select("dtype", "size_bytes")))) + taken
        methods[pairs] = METHODS.index("peer")
        taken = int(number.max()) + 1
    number[alone] = taken + np.arange(len(alone))
    order = np.lexsort((coded["rank"].to_numpy(), number))
    matched = coded[order].with_columns(
        pl.Series("collective", number[order]).set_sorted(), pl.Series("place", place[order]),
        pl.Series(METHODS, dtype=pl.Categorical)[methods[order]].alias("matched_by"))
    each = judged(matched, ranks=ranks, world_size=world_size)
    return pl.concat([matched.select(*rows.columns, "collective", "matched_by"), each[number[order]]], how="horizontal")


def _coded(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows with integers for what is compared: group_id, op_id, kind, label, id."""
    typed = rows.select("op", pl.when(pl.col("op") != "scatter").then("dtype"),
                        pl.when(pl.col("op").is_in(EQUAL_INPUTS)).then("size_bytes"))
    group = rows.select("group", "group_ranks", *(["lane"] if "lane" in rows.columns else []))
    return rows.with_columns(
        group_id=_in_order(_code(group)), op_id=_code(rows.select("op")), kind=_code(typed.drop("size_bytes")),
        label=_code(typed),
        id=pl.when(pl.col("comms_id").is_not_null()).then(_in_order(_code(rows.select("comms_id")))))


def _code(rows: pl.DataFrame) -> pl.Series:
    """A number a row, equal where the columns are: categories, or numbers from -1."""
    code = np.zeros(len(rows), np.int64)
    for column in rows.get_columns():
        code = pack(code, column.to_physical().cast(pl.Int64).fill_null(ALONE - 1).to_numpy() + 1 - ALONE)
    return pl.Series(code)


def _in_order(code: pl.Series) -> pl.Series:
    """Numbers from 0 as they appear."""
    number = dense(code.to_numpy())
    first = np.empty(number.max(initial=-1) + 1, np.int64)
    first[number[::-1]] = np.arange(len(number))[::-1]
    return pl.Series(dense(first)[number])


def _corrected(coded: pl.DataFrame, is_pair: pl.Series) -> pl.Series:
    """`group_sequence` without the sends and receives of the rank in the group before it."""
    if not is_pair.any():
        return coded["group_sequence"].alias("corrected")
    mine = pack(coded["group_id"].to_numpy(), coded["rank"].to_numpy())
    order = np.argsort(mine, kind="stable")
    counted = np.cumsum(is_pair.to_numpy()[order])
    before = np.empty(len(mine), np.int64)
    before[order] = counted - _before_each(mine[order], counted)
    sequence = _integers(coded["group_sequence"])
    return pl.Series("corrected", np.where(sequence == NONE, NONE, sequence - before))


def _before_each(ordered: Integers, counted: Integers) -> Integers:
    """What was counted before the run of equal values that each belongs to."""
    first = np.arange(len(ordered)) - occurrence(ordered)
    return np.where(first > 0, counted[first - 1], 0)


def _calls(chosen: pl.DataFrame) -> Calls:
    names = {"rank": "rank", "op": "op_id", "kind": "kind", "size": "size_bytes", "label": "label", "comms_id": "id",
             "group_sequence": "group_sequence", "corrected": "corrected", "sequence": "sequence", "step": "step"}
    return Calls(group=dense(chosen["group_id"].to_numpy()),
                 **{name: _integers(chosen[column]) for name, column in names.items()})


def _integers(column: pl.Series) -> Integers:
    return column.cast(pl.Int64).fill_null(NONE).to_numpy()
