"""Collectives with a root, and barriers."""

from __future__ import annotations

from dataclasses import dataclass

from support.simulator.maker import US, Maker
from support.simulator.shapes.axis import EVERYBODY, Axis


@dataclass(frozen=True, slots=True, kw_only=True)
class Rooted:
    """One rank sends to all or gets from all: buffers, the loss, indices of samples."""

    op: str
    root: int = 0
    """Position in the group."""
    axis: Axis = EVERYBODY
    num_bytes: int = 1 << 16
    ns: float = 100 * US
    root_ns: float = 20 * US
    """What the root does before; 0: nothing."""
    every: int = 1
    """In each so-manieth step."""
    shown: bool = True

    def __call__(self, job: Maker, rank: int) -> None:
        if job.step % self.every:
            return
        group = self.axis.group(job.num_ranks, rank)
        root = group[self.root % len(group)]
        if rank == root and self.root_ns:
            job.work(rank, "root", None, self.root_ns)
        job.wait(rank, job.call(rank, (self.op, self.root), self.op, group, self.num_bytes, self.ns, root=root),
                 shown=self.shown)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unrooted:
    """All ranks meet besides the model: a barrier before a checkpoint, a mean of the loss, a norm of gradients."""

    op: str = "barrier"
    axis: Axis = EVERYBODY
    num_bytes: int = 4
    ns: float = 50 * US
    every: int = 1
    shown: bool = True

    def __call__(self, job: Maker, rank: int) -> None:
        if not job.step % self.every:
            group = self.axis.group(job.num_ranks, rank)
            job.wait(rank, job.call(rank, self.op, self.op, group, self.num_bytes, self.ns), shown=self.shown)
