"""Pairs each send with its receive."""

from __future__ import annotations

import numpy as np
import polars as pl

from distprof.arrays import Integers
from distprof.merge.match.groups import occurrence
from distprof.merge.match.sequence_alignment import align

CHANNEL = ("group_id", "tag", "source", "target")


def transfer_numbers(rows: pl.DataFrame) -> Integers:
    """The k-th send from a rank to another, in a group and with a tag, is the k-th receive there.

    Where one side has more, their sizes and types are aligned; a row whose other side is not known stays alone.

    Args:
        rows: With the columns group_id, tag, op, rank, peer and content, a number for type and size; of each rank in
            the order of issue.

    Returns:
        int64 a row.
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
    # of those with an unknown peer every one is a pair of its own
    place[~is_known] = np.arange(len(place))[~is_known]
    key = np.stack([channel, place, np.where(is_known, 0, 1 + side)], axis=1)
    return np.unique(key, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _align(labels: Integers, receives: Integers, sends: Integers, place: Integers) -> None:
    """Gives the places of one channel, equal where both sides are one transfer."""
    ours, theirs = align(labels[receives], labels[sends])
    place[receives] = len(sends) + np.arange(len(receives))
    place[sends] = np.arange(len(sends))
    place[receives[ours]] = place[sends[theirs]]
