"""The communication of a rank as arrays: a value a call, in the order in which it issued them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from distprof.contract.collective_ops import POINT_TO_POINT
from distprof.contract.group_ranks import ranks_of
from distprof.contract.rank_summary import MOST_RANGES, NO_INTEGER, RankGroup
from distprof.summaries.packing import Cut, Integers, denials, flags, hash_of, integers, shortened, text_numbers

COLUMNS = ("step", "op", "group", "group_description", "group_ranks", "size_bytes", "dtype", "peer", "asynchronous",
           "enqueue_ns", "start_ns", "end_ns", "wait_start_ns", "wait_end_ns", "module_path", "phase", "in_autograd")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCalls:
    """Columns of `COLLECTIVES`; texts as numbers, -1 for null, with the texts beside them."""

    step: Integers
    op: Any
    ops: list[str]
    dtype: Any
    dtypes: list[str]
    phase: Any
    phases: list[str]
    module: Any
    modules: list[str]
    size: Integers
    peer: Integers
    asynchronous: Any
    cut_off: Any
    """True where gradients do not pass the result."""
    group: Any
    """Number of the group among `groups`."""
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
        """Its start, else when it was called."""
        return np.where(self.start == NO_INTEGER, self.enqueue, self.start)

    @property
    def is_message(self) -> Any:
        """True for sends and receives."""
        return np.isin(self.op, [number for number, name in enumerate(self.ops) if name in POINT_TO_POINT])


def rank_calls(path: Path, cut: Cut) -> RankCalls:
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
                     ranks_of(_text(members, of_group[row])), cut) for row in first.tolist()]
    (op, ops), (dtype, dtypes), (phase, phases), (module, modules) = (
        text_numbers(table, which) for which in ("op", "dtype", "phase", "module_path"))
    numbers = {field: integers(table, column) for field, column in (
        ("step", "step"), ("size", "size_bytes"), ("peer", "peer"), ("enqueue", "enqueue_ns"), ("start", "start_ns"),
        ("end", "end_ns"), ("wait_start", "wait_start_ns"), ("wait_end", "wait_end_ns"))}
    return RankCalls(op=op, ops=ops, dtype=dtype, dtypes=dtypes, phase=phase, phases=phases, module=module,
                     modules=[shortened(one, cut) for one in modules], group=group.reshape(-1), groups=groups,
                     asynchronous=flags(table, "asynchronous"), cut_off=denials(table, "in_autograd"),
                     **numbers)


def _group(name: str, description: str, members: Sequence[int], cut: Cut) -> RankGroup:
    ranks = np.array(members, np.int64)
    ranges = ranges_of(ranks)
    if len(ranges) > MOST_RANGES:
        cut["ranks of groups"] += len(ranks)
        ranges = []
    return RankGroup(name=shortened(name, cut), description=shortened(description, cut), ranges=ranges,
                     num_ranks=len(ranks), digest=hash_of(ranks.astype("<i8").tobytes()))


def ranges_of(ranks: Any) -> list[tuple[int, int, int]]:
    """Numbers as (first, stride, count), in their order."""
    found, begin, values = list[tuple[int, int, int]](), 0, np.asarray(ranks, np.int64)
    steps = np.diff(values)
    while begin < len(values):
        if begin == len(values) - 1:
            return [*found, (int(values[begin]), 1, 1)]
        other = np.flatnonzero(steps[begin:] != steps[begin])
        count = int(other[0]) + 1 if len(other) else len(values) - begin
        found.append((int(values[begin]), int(steps[begin]), count))
        begin += count
        if len(found) > MOST_RANGES:
            break  # who asked will leave them out
    return found


def _text(names: list[str], number: int) -> str:
    return names[number] if number >= 0 else ""
