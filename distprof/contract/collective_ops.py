"""Communication ops, one row each: what backends call them, what ranks wait for, and how their cost is counted.

The ranks of a process group as a text, which tables hold and commands print.

A new op is a new row of `ROWS`. Rules that need numpy or polars are named here and stand beside their user.
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
    """A kind of communication."""

    name: str
    """As in our tables."""
    letter: str
    """In timelines of the terminal."""
    c10d: tuple[str, ...]
    """Operators of torch.ops.c10d that issue it; not every torch has all."""
    keyword: str
    """What names of its kernels and events have in them, in lower case and without underscores."""
    gloo: tuple[str, ...] = ()
    """Names that gloo gives to its work; without any, that of the op."""
    nccl: tuple[str, ...] = ()
    """Further keywords of NCCL kernels that do it."""
    leaves: Literal["after all", "after data", "any time"] = "any time"
    """When a rank may leave: after all have entered, whatever they send; after the ranks from which it gets data have
    entered; or whenever its own part is done."""
    equal_inputs: bool = False
    """True where the inputs of all ranks must have as many bytes."""
    rooted: bool = False
    """True where `peer` is the root, which all ranks must agree on."""
    begins: Literal["together", "from root", "to root"] = "together"
    """Whom a rank needs before its part can move: all others, the root, or, being the root, all others. Gloo's reduce
    needs all ranks."""
    point_to_point: bool = False
    has_data: bool = True
    size: Literal["sum", "mean", "max"] = "max"
    """How the size that nccl-tests count follows from the input bytes of the ranks."""
    bus_factor: Literal["ring twice", "ring", "once"] | None = "once"
    """busbw / algbw of n ranks (doc/PERFORMANCE.md of nccl-tests): 2 (n - 1) / n, (n - 1) / n or 1; None where there
    is no bandwidth."""
    traffic: Literal["ring twice", "ring", "ring of all", "from root", "to root", "all to root", "root to all",
                     "to each", "pair"] | None = None
    """Who sends how much to whom: a rule of `merge.cost.matrix`; None where nothing is sent."""


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
"""Other ops may be in traces: of those only the name is known."""

COLLECTIVE_OPS = {op.name: op for op in ROWS}
WAITING_FOR_ALL = tuple(op.name for op in ROWS if op.leaves != "any time")
"""Ops in which a rank that comes early waits for the last one."""
BOUNDING_CLOCKS = tuple(op.name for op in ROWS if op.leaves == "after all")
"""Ops that end on no rank before they began on all; in all_to_all a rank may have nothing to wait for."""
POINT_TO_POINT = tuple(op.name for op in ROWS if op.point_to_point)
EQUAL_INPUTS = tuple(op.name for op in ROWS if op.equal_inputs)
ROOTED = tuple(op.name for op in ROWS if op.rooted)
WITHOUT_DATA = tuple(op.name for op in ROWS if not op.has_data)
OP_OF_C10D = {operator: op.name for op in ROWS for operator in op.c10d}
"""Operator of torch.ops.c10d -> op."""


def gloo_names(name: str) -> tuple[str, ...]:
    """What gloo may call the work of an op."""
    return COLLECTIVE_OPS[name].gloo or (name,) if name in COLLECTIVE_OPS else (name,)


def bus_factor(name: str, num_ranks: int) -> float | None:
    """busbw / algbw; None for an op that has no bandwidth or no row, and for one rank."""
    rule = COLLECTIVE_OPS[name].bus_factor if name in COLLECTIVE_OPS else None
    if rule is None or num_ranks < 2:
        return None
    share = (num_ranks - 1) / num_ranks
    return {"ring twice": 2 * share, "ring": share, "once": 1.0}[rule]


_RANGE = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7})(?: by ([0-9]{1,7}))?)?")


def text_of(ranks: Sequence[int]) -> str:
    """`0-3`, `0, 2, 5-7`, `0-24 by 8`: ranks in the order in which the group has them."""
    return spans(ranks)


@lru_cache(maxsize=1 << 14)
def ranks_of(text: str | None) -> tuple[int, ...]:
    """The ranks of such a text, in its order; none where it is null or says no ranks that can be."""
    found = list[int]()
    for part in (text or "").split(", "):
        match = _RANGE.fullmatch(part)
        if match is None:
            return ()
        first, last, stride = match.groups()
        some = range(int(first), int(last or first) + 1, int(stride or 1) or MOST_RANKS)
        if not some or len(found) + len(some) > MOST_RANKS:
            return ()  # a text of some bytes may be meant to take all memory
        found += some
    return tuple(found)
