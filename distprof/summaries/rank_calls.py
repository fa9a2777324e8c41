"""The communication of a rank as arrays with one value per call, in the order in which the rank issued the calls.

Calls are divided into channels, in which the rank meets others, cells (the calls of a channel in one step), and
sequences (equal cells).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from distprof.arrays import Flags, Integers
from distprof.contract.collective_ops import EQUAL_INPUTS, POINT_TO_POINT, ROOTED, ranks_of
from distprof.contract.rank_summary import NO_INTEGER, Channel, RankGroup
from distprof.summaries.packing import denials, flags, hash_of, integers, text_numbers

COLUMNS = ("step", "op", "group", "group_description", "group_ranks", "sequence", "group_sequence", "num_elements",
           "size_bytes", "dtype", "peer", "tag", "asynchronous", "enqueue_ns", "start_ns", "end_ns", "timed_by",
           "wait_start_ns", "wait_end_ns", "module_path", "phase", "in_autograd")
"""Columns of `COLLECTIVES` that are read: all that are not determined by rank or group, except how an all_to_all is
split, which may differ in each call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCalls:
    """Columns of `COLLECTIVES`; texts are numbers (-1 for null), with the texts in a separate list."""

    step: Integers
    op: Integers
    ops: list[str]
    dtype: Integers
    dtypes: list[str]
    phase: Integers
    phases: list[str]
    module: Integers
    modules: list[str]
    timed_by: Integers
    ways: list[str]
    sequence: Integers
    group_sequence: Integers
    elements: Integers
    size: Integers
    peer: Integers
    tag: Integers
    asynchronous: Flags
    cut_off: Flags
    """True if gradients do not flow through the result."""
    joined: Flags
    """True if they do."""
    group: Integers
    """Index of the group in `groups`."""
    enqueue: Integers
    start: Integers
    end: Integers
    wait_start: Integers
    wait_end: Integers
    groups: list[RankGroup]

    def __len__(self) -> int:
        return len(self.step)

    @property
    def arrival(self) -> Integers:
        """Start of each call, or when it was called if that is unknown."""
        return np.where(self.start == NO_INTEGER, self.enqueue, self.start)

    @property
    def is_message(self) -> Flags:
        """True for sends and receives."""
        return np.isin(self.op, [number for number, name in enumerate(self.ops) if name in POINT_TO_POINT])


def rank_calls(path: Path) -> RankCalls:
    """Reads `collectives.parquet` of a rank."""
    with path.open("rb") as file:
        opened = pq.ParquetFile(file)
        there = [name for name in COLUMNS if name in opened.schema_arrow.names]
        table = opened.read(columns=there, use_threads=False)
        (name, names), (about, descriptions) = (text_numbers(table, which) for which in ("group", "group_description"))
        keys = (name.astype(np.int64) + 1) * (len(descriptions) + 1) + about + 1
        _, first, group = np.unique(keys, return_index=True, return_inverse=True)
        of_group, members = text_numbers(table, "group_ranks")
    groups = [_group(_text(names, name[row]), _text(descriptions, about[row]),
                     ranks_of(_text(members, of_group[row]))) for row in first.tolist()]
    (op, ops), (dtype, dtypes), (phase, phases), (module, modules), (timed_by, ways) = (
        text_numbers(table, which) for which in ("op", "dtype", "phase", "module_path", "timed_by"))
    numbers = {field: integers(table, column) for field, column in (
        ("step", "step"), ("sequence", "sequence"), ("group_sequence", "group_sequence"), ("elements", "num_elements"),
        ("size", "size_bytes"), ("peer", "peer"), ("tag", "tag"), ("enqueue", "enqueue_ns"), ("start", "start_ns"),
        ("end", "end_ns"), ("wait_start", "wait_start_ns"), ("wait_end", "wait_end_ns"))}
    return RankCalls(op=op, ops=ops, dtype=dtype, dtypes=dtypes, phase=phase, phases=phases, module=module,
                     modules=modules, timed_by=timed_by, ways=ways, group=group.reshape(-1), groups=groups,
                     asynchronous=flags(table, "asynchronous"), cut_off=denials(table, "in_autograd"),
                     joined=flags(table, "in_autograd"), **numbers)


def _group(name: str, description: str, members: Sequence[int]) -> RankGroup:
    ranks = np.array(members, np.int64)
    return RankGroup(name=name, description=description, ranges=ranges_of(ranks), num_ranks=len(ranks),
                     digest=hash_of(ranks.astype("<i8").tobytes()))


def ranges_of(ranks: Sequence[int] | Integers) -> list[tuple[int, int, int]]:
    """Returns numbers as (first, stride, count), in their order."""
    found, begin, values = list[tuple[int, int, int]](), 0, np.asarray(ranks, np.int64)
    steps = np.diff(values)
    while begin < len(values):
        if begin == len(values) - 1:
            return [*found, (int(values[begin]), 1, 1)]
        other = np.flatnonzero(steps[begin:] != steps[begin])
        count = int(other[0]) + 1 if len(other) else len(values) - begin
        found.append((int(values[begin]), int(steps[begin]), count))
        begin += count
    return found


def _text(names: list[str], number: int) -> str:
    return names[number] if number >= 0 else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """Calls in the order of their cells."""

    channels: list[Channel]
    row: Integers
    """Row of each call, in this order."""
    channel: Integers
    """Channel of each cell."""
    step: Integers
    first: Integers
    """Index in `row` at which the calls of each cell begin."""
    count: Integers


def cells_of(calls: RankCalls) -> Cells:
    """Divides calls into cells; sends and receives have a channel per op and peer, collectives one per group."""
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
    """Returns a hash per call that is equal on all ranks of the call.

    It covers op and type, size or root if they must be equal, and the tag of a message.
    """
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
