"""Divides the calls of a rank: channels in which it meets others, cells of a step each, sequences that are alike."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distprof.arrays import Integers
from distprof.contract.collective_ops import EQUAL_INPUTS, ROOTED
from distprof.contract.rank_summary import Channel
from distprof.summaries.packing import hash_of
from distprof.summaries.rank_calls import RankCalls


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """Calls in the order of their cells."""

    channels: list[Channel]
    row: Integers
    """Of each call in this order."""
    channel: Integers
    """Of each cell; likewise the next three."""
    step: Integers
    first: Integers
    """Where its calls begin in `row`."""
    count: Integers


def cells_of(calls: RankCalls) -> Cells:
    """Sends and receives are a channel for each other side; collectives one for each group."""
    message = calls.is_message
    keys = np.stack((calls.group, np.where(message, calls.op, -1), np.where(message, calls.peer, -1)))
    unique, channel = np.unique(keys, axis=1, return_inverse=True)
    channel = channel.reshape(-1)
    channels = [Channel(group=int(group), op=None if op < 0 else calls.ops[op], peer=int(peer) if op >= 0 else None)
                for group, op, peer in unique.T.tolist()]
    row = np.lexsort((calls.step, channel))
    begins = np.flatnonzero(np.append(True, np.diff(channel[row]) | np.diff(calls.step[row]))) if len(row) else row
    return Cells(channels=channels, row=row, channel=channel[row[begins]], step=calls.step[row[begins]], first=begins,
                 count=np.diff(np.append(begins, len(row))))


def labels_of(calls: RankCalls) -> Integers:
    """A hash a call, equal on all ranks of a call: op and type, and size or root where these must be equal; the tag of
    a message."""
    message = calls.is_message
    op = np.where(message, -1, calls.op)
    sized, rooted, scatter = (np.isin(calls.op, [index for index, name in enumerate(calls.ops) if name in names])
                              for names in (EQUAL_INPUTS, ROOTED, ("scatter",)))
    keys = np.stack((op, np.where(scatter, -1, calls.dtype), np.where(sized | message, calls.size, -1),
                     np.where(rooted, calls.peer, np.where(message, calls.tag, -1))))
    unique, number = np.unique(keys, axis=1, return_inverse=True)
    hashes = [hash_of(repr((calls.ops[op] if op >= 0 else None, calls.dtypes[dtype] if dtype >= 0 else None, *rest))
                      .encode()) for op, dtype, *rest in unique.T.tolist()]
    return np.array(hashes, np.int64)[number.reshape(-1)]
