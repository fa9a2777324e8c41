"""Divides the calls of a rank: channels in which it meets others, cells of a step each, sequences that are alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distprof.contract.collective_ops import EQUAL_INPUTS, ROOTED
from distprof.contract.rank_summary import CALLS_EACH, MESSAGES_EACH, MOST_CHANNELS, Channel
from distprof.summaries.packing import Cut, Integers, hash_of
from distprof.summaries.rank_calls import RankCalls

_EIGHT = (7, 0, 4, 2, 6, 1, 3, 5)
_FOUR = (3, 0, 2, 1)
"""Order in which even places are taken, so that ranks with room for fewer keep some of the same calls."""

TURN, PART = 0.3819660112501051, 0.6180339887498949
"""Steps of the golden ratio: places of successive turns and parts fall between those before."""


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


def cells_of(calls: RankCalls, cut: Cut) -> Cells:
    """Sends and receives are a channel for each other side; collectives one for each group."""
    message = calls.is_message
    keys = np.stack((calls.group, np.where(message, calls.op, -1), np.where(message, calls.peer, -1)))
    unique, channel, number = np.unique(keys, axis=1, return_inverse=True, return_counts=True)
    channel, kept = channel.reshape(-1), np.arange(len(number))
    if len(number) > MOST_CHANNELS:
        kept = np.sort(np.argsort(-number, kind="stable")[:MOST_CHANNELS])
        cut["calls of channels"] += int(number.sum() - number[kept].sum())
    channels = [Channel(group=int(group), op=None if op < 0 else calls.ops[op], peer=int(peer) if op >= 0 else None)
                for group, op, peer in unique[:, kept].T.tolist()]
    place = np.full(len(number), -1)
    place[kept] = np.arange(len(kept))
    channel = place[channel]
    row = np.flatnonzero(channel >= 0)
    row = row[np.lexsort((calls.step[row], channel[row]))]
    begins = np.flatnonzero(np.append(True, np.diff(channel[row]) | np.diff(calls.step[row]))) if len(row) else row
    return Cells(channels=channels, row=row, channel=channel[row[begins]], step=calls.step[row[begins]], first=begins,
                 count=np.diff(np.append(begins, len(row))))


def labels_of(calls: RankCalls) -> Integers:
    """A hash a call, equal on all ranks of a call: op and type, and size or root where these must be equal."""
    op = np.where(calls.is_message, -1, calls.op)
    sized, rooted, scatter = (np.isin(calls.op, [index for index, name in enumerate(calls.ops) if name in names])
                              for names in (EQUAL_INPUTS, ROOTED, ("scatter",)))
    keys = np.stack((op, np.where(scatter, -1, calls.dtype), np.where(sized | calls.is_message, calls.size, -1),
                     np.where(rooted, calls.peer, -1)))
    unique, number = np.unique(keys, axis=1, return_inverse=True)
    hashes = [hash_of(repr((calls.ops[op] if op >= 0 else None, calls.dtypes[dtype] if dtype >= 0 else None, *rest))
                      .encode()) for op, dtype, *rest in unique.T.tolist()]
    return np.array(hashes, np.int64)[number.reshape(-1)]


def places_of(count: int, each: int, turn: int, *, is_message: bool) -> Any:
    """Places of a sequence, ascending, one in each of so many parts of it, and the last; other ones in other turns.

    Layers repeat: at equal distances the calls of some would never be kept. With room for fewer, some of the same.
    """
    most, order = (MESSAGES_EACH, _FOUR) if is_message else (CALLS_EACH, _EIGHT)
    if count <= most:
        every = np.arange(most) * (count - 1) // (most - 1)
    else:
        part = np.arange(most)
        every = np.floor((part + (turn * TURN + part * PART) % 1) * count / most).astype(np.int64)
        every[-1] = count - 1
    return np.unique(every[list(order[:min(each, most)])])
