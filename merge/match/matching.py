"""Finds which rows of different ranks are one collective, or a send and its receive.

Times are not used, so matches do not depend on the clocks of the ranks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from distprof.arrays import Integers
from distprof.contract.collective_ops import EQUAL_INPUTS, POINT_TO_POINT
from distprof.merge.match.groups import NONE, Calls, dense, keys_of, occurrence, pack
from distprof.merge.match.mismatches import judged
from distprof.merge.match.sequence_alignment import align

MATCHED = ("collective", "matched_by", "num_ranks", "complete", "mismatch")
"""Columns that matching adds."""
METHODS = ("id", "sequence", "label", "order", "peer", None)
"""Values of `matched_by`; None: the group of the row is unknown, so that it is not matched."""
FOUND_BEFORE = ("corrected", "place")
"""Columns that only matching uses, which rows may already have."""
ALONE = -1
"""`lane` of rows whose group is unknown."""
CHANNEL = ("group_id", "tag", "source", "target")
"""Columns that identify a channel of messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Calls of one group whose places are already known; their rows have the column `place`."""

    method: str
    """One of `METHODS`."""
    last: Mapping[int, int]
    """Rank -> last place of its rows, here or elsewhere."""


def match(rows: pl.DataFrame, *, ended: Collection[int], world_size: int,
          placed: Placed | None = None) -> pl.DataFrame:
    """Finds the collective that each row belongs to.

    Args:
        rows: As in `RankRows`, rank by rank; the rows of a rank in the order of issue. If these are not all rows of the
            job, they are all rows of their collectives, or of the messages of pairs of ranks, and have the column
            `corrected`, as `with_corrected` computes it from all rows of a rank.
        ended: Ranks that made no call after their last row, because their script had ended.
        world_size: Number of ranks of the job.
        placed: Known places, if places were found before.

    Returns:
        The rows with `MATCHED`, sorted by `collective` and rank; `collective` counts from 0 in the order of first rows.
    """
    if rows.is_empty():
        return rows.with_columns(pl.lit(None, kind).alias(name) for name, kind in zip(
            MATCHED, (pl.Int64, pl.Categorical, pl.Int64, pl.Boolean, pl.Categorical), strict=True))
    coded = _coded(rows if "corrected" in rows.columns else with_corrected(rows))
    is_pair = coded["op"].is_in(POINT_TO_POINT)
    is_alone = (coded["lane"] == ALONE).fill_null(False) if "lane" in coded.columns else is_pair & False
    together, pairs, alone = (np.flatnonzero(mask.to_numpy()) for mask in (
        ~is_pair & ~is_alone, is_pair, ~is_pair & is_alone))
    number, place = np.zeros(len(coded), np.int64), np.zeros(len(coded), np.int64)
    methods = np.full(len(coded), METHODS.index(None))
    taken = 0
    if len(together):
        calls = _calls(coded.filter(~is_pair & ~is_alone))
        key, method = keys_of(calls) if placed is None else (coded["place"].to_numpy(), [placed.method])
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
    number = _in_order(pl.Series(number)).to_numpy()
    order = np.lexsort((coded["rank"].to_numpy(), number))
    matched = coded[order].with_columns(
        pl.Series("collective", number[order]).set_sorted(), pl.Series("place", place[order]),
        pl.Series(METHODS, dtype=pl.Categorical)[methods[order]].alias("matched_by"))
    del coded  # the largest frame
    each = judged(matched, ended=ended, world_size=world_size, last=None if placed is None else placed.last)
    kept = [name for name in rows.columns if name not in FOUND_BEFORE]
    return pl.concat([matched.select(*kept, "collective", "matched_by"), each[number[order]]], how="horizontal")


def _coded(rows: pl.DataFrame) -> pl.DataFrame:
    """Adds integer codes for what is compared: group_id, op_id, kind, label, id."""
    typed = rows.select("op", pl.when(pl.col("op") != "scatter").then("dtype"),
                        pl.when(pl.col("op").is_in(EQUAL_INPUTS)).then("size_bytes"))
    return rows.with_columns(
        group_id=_in_order(_group_code(rows)), op_id=_code(rows.select("op")), kind=_code(typed.drop("size_bytes")),
        label=_code(typed),
        id=pl.when(pl.col("comms_id").is_not_null()).then(_in_order(_code(rows.select("comms_id")))))


def _group_code(rows: pl.DataFrame) -> pl.Series:
    return _code(rows.select("group", "group_ranks", *(["lane"] if "lane" in rows.columns else [])))


def _code(rows: pl.DataFrame) -> pl.Series:
    """Returns a number per row that is equal for equal rows; columns are categories, or numbers from -1."""
    code = np.zeros(len(rows), np.int64)
    for column in rows.select(pl.all().to_physical().cast(pl.Int64).fill_null(ALONE - 1)).get_columns():
        code = pack(code, column.to_numpy() + 1 - ALONE)
    return pl.Series(code)


def _in_order(code: pl.Series) -> pl.Series:
    """Renumbers codes from 0 in the order in which they appear."""
    number = dense(code.to_numpy())
    first = np.empty(number.max(initial=-1) + 1, np.int64)
    first[number[::-1]] = np.arange(len(number))[::-1]
    return pl.Series(dense(first)[number])


def with_corrected(rows: pl.DataFrame) -> pl.DataFrame:
    """Adds `corrected`: `group_sequence` less the number of sends and receives of the rank in the group before it.

    Args:
        rows: All rows of some ranks.
    """
    is_pair = rows["op"].is_in(POINT_TO_POINT)
    if not is_pair.any():
        return rows.with_columns(pl.col("group_sequence").alias("corrected"))
    mine = pack(_group_code(rows).to_numpy(), rows["rank"].to_numpy())
    order = np.argsort(mine, kind="stable")
    counted = np.cumsum(is_pair.to_numpy()[order])
    before = np.empty(len(mine), np.int64)
    before[order] = counted - _before_each(mine[order], counted)
    return rows.with_columns((pl.col("group_sequence") - pl.Series(before)).alias("corrected"))


def _before_each(ordered: Integers, counted: Integers) -> Integers:
    """Returns the count before the run of equal values that each element belongs to."""
    first = np.arange(len(ordered)) - occurrence(ordered)
    return np.where(first > 0, counted[first - 1], 0)


def calls_of(rows: pl.DataFrame) -> Calls:
    """Returns what is compared of rows of whole groups, without sends and receives; the rows have the column
    `corrected`."""
    return _calls(_coded(rows))


def _calls(chosen: pl.DataFrame) -> Calls:
    if "split_bytes" in chosen.columns:
        # if ranks split their inputs depending on their data, equal sizes prove nothing
        splits = pl.col("split_bytes").list
        uneven = (splits.max() != splits.min()).any().over("group_id", "kind")
        chosen = chosen.with_columns(size_bytes=pl.when(uneven).then(0).otherwise("size_bytes"))
    names = {"rank": "rank", "op": "op_id", "kind": "kind", "size": "size_bytes", "label": "label", "comms_id": "id",
             "group_sequence": "group_sequence", "corrected": "corrected", "sequence": "sequence", "step": "step"}
    values = chosen.select(pl.col(column).cast(pl.Int64).fill_null(NONE).alias(name) for name, column in names.items())
    return Calls(group=dense(chosen["group_id"].to_numpy()), **{name: values[name].to_numpy() for name in names})


def transfer_numbers(rows: pl.DataFrame) -> Integers:
    """Pairs the k-th send from one rank to another, in a group and with a tag, with the k-th receive there.

    If one side has more messages, both are aligned by sizes and types; a row whose other side is unknown stays alone.

    Args:
        rows: With the columns group_id, tag, op, rank, peer and content (a number for type and size); rows of each rank
            in the order of issue.

    Returns:
        Number of the transfer of each row, int64.
    """
    numbered = rows.select(
        "group_id", "content", "peer", (pl.col("op") == "send").alias("is_send"), pl.col("tag").fill_null(-1),
        pl.when(pl.col("op") == "send").then("rank").otherwise("peer").alias("source"),
        pl.when(pl.col("op") == "send").then("peer").otherwise("rank").alias("target"))
    channels = numbered.select(*CHANNEL).unique(maintain_order=True).with_row_index("channel")
    numbered = numbered.join(channels, on=CHANNEL, how="left", nulls_equal=True, maintain_order="left")
    channel = numbered["channel"].cast(pl.Int64).to_numpy()
    is_send, is_known = numbered["is_send"].to_numpy(), numbered["peer"].is_not_null().to_numpy()
    side = channel * 2 + is_send
    place = occurrence(side)
    counts = np.bincount(side, minlength=2 * len(channels)).reshape(-1, 2)
    for uneven in np.flatnonzero((counts[:, 0] != counts[:, 1]) & (counts.min(axis=1) > 0)).tolist():
        receives, sends = (np.flatnonzero(side == 2 * uneven + of) for of in (0, 1))
        _align(numbered["content"].to_numpy(), receives, sends, place)
    # each row with an unknown peer is a transfer of its own
    place[~is_known] = np.arange(len(place))[~is_known]
    key = np.stack([channel, place, np.where(is_known, 0, 1 + side)], axis=1)
    return np.unique(key, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _align(labels: Integers, receives: Integers, sends: Integers, place: Integers) -> None:
    """Sets the places of the rows of one channel, equal for both sides of a transfer."""
    ours, theirs = align(labels[receives], labels[sends])
    place[receives] = len(sends) + np.arange(len(receives))
    place[sends] = np.arange(len(sends))
    place[receives[ours]] = place[sends[theirs]]
