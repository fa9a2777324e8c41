"""Communication ops, one row each: names in backends, what ranks wait for, and rules for their cost.

Also the text form of the ranks of a process group, used in tables and in output. A new op is a new row of `ROWS`. Rules
that need numpy or polars are only named here; their code is next to its user.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from distprof.contract.run_json import MOST_RANKS
from distprof.units import spans


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveOp:
    """One kind of communication op."""

    name: str
    """Name in tables of the run directory."""
    letter: str
    """Stands for the op in timelines in the terminal."""
    c10d: tuple[str, ...]
    """Operators of torch.ops.c10d that issue it; not every torch version has all of them."""
    keyword: str
    """Occurs in the names of its kernels and events, in lower case and without underscores."""
    gloo: tuple[str, ...] = ()
    """Names that gloo gives to its work; if empty, gloo uses the name of the op."""
    nccl: tuple[str, ...] = ()
    """Further keywords in the names of NCCL kernels that perform it."""
    leaves: Literal["after all", "after data", "any time"] = "any time"
    """When a rank may leave the op: after all ranks have entered, whatever they send; after the ranks from which it
    gets data have entered; or as soon as its own part is done."""
    equal_inputs: bool = False
    """True if the inputs of all ranks must have the same number of bytes."""
    rooted: bool = False
    """True if `peer` is the root, which must be the same on all ranks."""
    begins: Literal["together", "from root", "to root"] = "together"
    """Which ranks must have entered before a rank's data can move: all ("together"); the root ("from root"); or all for
    the root, and none for the others ("to root"). Gloo's reduce needs all ranks."""
    point_to_point: bool = False
    has_data: bool = True
    size: Literal["sum", "mean", "max"] = "max"
    """How the size as defined by nccl-tests follows from the input bytes of the ranks."""
    bus_factor: Literal["ring twice", "ring", "once"] | None = "once"
    """busbw / algbw of n ranks (doc/PERFORMANCE.md of nccl-tests): 2 (n - 1) / n, (n - 1) / n or 1; None if the op has
    no bandwidth."""
    traffic: Literal["ring twice", "ring", "ring of all", "from root", "to root", "all to root", "root to all",
                     "to each", "pair"] | None = None
    """Which rank sends how much to which: a rule of `merge.cost.matrix`; None if nothing is sent."""


ROWS = (
    CollectiveOp(
        name="all_reduce", letter="A", c10d=("allreduce_", "allreduce_coalesced_"), keyword="allreduce",
        gloo=("all_reduce", "sparse_all_reduce"), leaves="after all", equal_inputs=True, bus_factor="ring twice",
        traffic="ring twice"),
    CollectiveOp(
        name="all_gather", letter="G", keyword="allgather", leaves="after all", size="sum", bus_factor="ring",
        c10d=("allgather_", "_allgather_base_", "allgather_coalesced_", "allgather_into_tensor_coalesced_"),
        traffic="ring of all"),
    CollectiveOp(
        name="reduce_scatter", letter="R", keyword="reducescatter", gloo=("reduce_scatter", "all_reduce"),
        c10d=("reduce_scatter_", "_reduce_scatter_base_", "reduce_scatter_tensor_coalesced_"), leaves="after all",
        equal_inputs=True, bus_factor="ring", traffic="ring"),
    CollectiveOp(
        name="all_to_all", letter="T", c10d=("alltoall_", "alltoall_base_"), keyword="alltoall", leaves="after data",
        size="mean", bus_factor="ring", traffic="to each"),
    CollectiveOp(
        name="barrier", letter="|", c10d=("barrier", "monitored_barrier_"), keyword="barrier", nccl=("allreduce",),
        leaves="after all", has_data=False, bus_factor=None),
    CollectiveOp(
        name="broadcast", letter="B", c10d=("broadcast_",), keyword="broadcast", equal_inputs=True, rooted=True,
        begins="from root", traffic="from root"),
    CollectiveOp(
        name="reduce", letter="e", c10d=("reduce_",), keyword="reduce", equal_inputs=True, rooted=True,
        traffic="to root"),
    CollectiveOp(
        name="gather", letter="g", c10d=("gather_", "gather_into_tensor_"), keyword="gather", rooted=True, size="sum",
        bus_factor="ring", begins="to root", traffic="all to root"),
    CollectiveOp(
        name="scatter", letter="c", c10d=("scatter_",), keyword="scatter", rooted=True, bus_factor="ring",
        begins="from root", traffic="root to all"),
    CollectiveOp(name="send", letter="s", c10d=("send",), keyword="send", point_to_point=True, traffic="pair"),
    CollectiveOp(
        name="recv", letter="r", c10d=("recv_", "recv_any_source_"), keyword="recv", point_to_point=True,
        traffic="pair"),
)
"""Traces may contain other ops, of which only the name is known."""

COLLECTIVE_OPS = {op.name: op for op in ROWS}
WAITING_FOR_ALL = tuple(op.name for op in ROWS if op.leaves != "any time")
"""Ops in which a rank that arrives early waits for the last one."""
BOUNDING_CLOCKS = tuple(op.name for op in ROWS if op.leaves == "after all")
"""Ops that end on no rank before all ranks have entered. Not all_to_all, in which a rank may have nothing to wait
for."""
POINT_TO_POINT = tuple(op.name for op in ROWS if op.point_to_point)
EQUAL_INPUTS = tuple(op.name for op in ROWS if op.equal_inputs)
ROOTED = tuple(op.name for op in ROWS if op.rooted)
WITHOUT_DATA = tuple(op.name for op in ROWS if not op.has_data)
OP_OF_C10D = {operator: op.name for op in ROWS for operator in op.c10d}
"""Operator of torch.ops.c10d -> op."""


def gloo_names(name: str) -> tuple[str, ...]:
    """Returns the names that gloo may give to the work of an op."""
    return COLLECTIVE_OPS[name].gloo or (name,) if name in COLLECTIVE_OPS else (name,)


def bus_factor(name: str, num_ranks: int) -> float | None:
    """Returns busbw / algbw; None for ops without bandwidth, ops that are not in `ROWS`, and a single rank."""
    rule = COLLECTIVE_OPS[name].bus_factor if name in COLLECTIVE_OPS else None
    if rule is None or num_ranks < 2:
        return None
    share = (num_ranks - 1) / num_ranks
    return {"ring twice": 2 * share, "ring": share, "once": 1.0}[rule]


_RANGE = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7})(?: by ([0-9]{1,7}))?)?")


def text_of(ranks: Sequence[int]) -> str:
    """Returns ranks as text, in the order of the group: `0-3`, `0, 2, 5-7`, `0-24 by 8`."""
    return spans(ranks)


@lru_cache(maxsize=1 << 14)
def ranks_of(text: str | None) -> tuple[int, ...]:
    """Parses the text of `text_of`; returns no ranks if it is None or invalid."""
    found = list[int]()
    for part in (text or "").split(", "):
        match = _RANGE.fullmatch(part)
        if match is None:
            return ()
        first, last, stride = match.groups()
        some = range(int(first), int(last or first) + 1, int(stride or 1) or MOST_RANKS)
        if not some or len(found) + len(some) > MOST_RANKS:
            return ()  # a short text could otherwise ask for all memory
        found += some
    return tuple(found)
