"""What the kinds of communication are: the name of an op comes in, what it waits for and how it is counted goes out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """A kind of communication.

    Bandwidth follows doc/PERFORMANCE.md of nccl-tests: algbw = size / time, busbw = algbw x factor.
    """

    synchronises: bool = False
    """True where no rank leaves before all have entered."""
    point_to_point: bool = False
    equal_sizes: bool = False
    """True where the inputs of all ranks must have as many bytes."""
    size: Literal["sum", "mean", "max"] = "max"
    """How the size of nccl-tests follows from the input bytes of the ranks."""
    bus_factor: Literal["ring twice", "ring", "once"] = "once"
    """2 (n - 1) / n, (n - 1) / n or 1, where n is the number of ranks."""


OPS = {
    "all_reduce": Op(synchronises=True, equal_sizes=True, bus_factor="ring twice"),
    "all_gather": Op(synchronises=True, size="sum", bus_factor="ring"),
    "reduce_scatter": Op(synchronises=True, equal_sizes=True, bus_factor="ring"),
    "all_to_all": Op(synchronises=True, size="mean", bus_factor="ring"),
    "barrier": Op(synchronises=True),
    "broadcast": Op(equal_sizes=True),
    "reduce": Op(equal_sizes=True),
    "gather": Op(size="sum", bus_factor="ring"),
    "scatter": Op(bus_factor="ring"),
    "send": Op(point_to_point=True),
    "recv": Op(point_to_point=True),
}
"""By the name in the tables. An op that is not there is known by its name only."""

SYNCHRONISING = tuple(name for name, op in OPS.items() if op.synchronises)
POINT_TO_POINT = tuple(name for name, op in OPS.items() if op.point_to_point)
EQUAL_SIZES = tuple(name for name, op in OPS.items() if op.equal_sizes)


def bus_factor(op: str, num_ranks: int) -> float | None:
    """busbw / algbw; None for an op that nccl-tests does not know, and for one rank."""
    if op not in OPS or op == "barrier" or num_ranks < 2:
        return None
    share = (num_ranks - 1) / num_ranks
    return {"ring twice": 2 * share, "ring": share, "once": 1.0}[OPS[op].bus_factor]
