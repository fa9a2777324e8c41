"""What a rank does, instruction by instruction."""

from __future__ import annotations

from typing import NamedTuple

Group = tuple[int, ...]
Key = tuple[object, ...]
"""Of a collective; equal on the ranks that are in it."""


class Work(NamedTuple):
    """The thread of the rank is busy."""

    kind: str
    """data, forward, backward, optimizer, zero_grad, host, root: host work before a collective of which this rank is
    the root."""
    where: str | None
    """Path of a module; of the host, what it lies between, where that is told."""
    ns: int


class Fetch(NamedTuple):
    """The thread takes the next batch of a DataLoader with worker processes, and stands still until it is there."""

    ns: int
    """How long a worker takes to make this batch."""
    workers: int
    prefetch: int
    """Batches that each worker makes ahead, as `prefetch_factor`."""


class Call(NamedTuple):
    """Hands a collective to the backend, and goes on."""

    key: Key
    op: str
    group: Group
    num_bytes: int
    ns: int
    """How long this rank takes to move its data once the ranks are there that it needs. Gloo's reduce, and a send, need
    the other side too, whatever their names say."""
    latency_ns: int = 0
    """From where a lane is free to where the backend begins."""
    call_ns: int = 0
    """How long the thread is in the call."""
    root: int | None = None
    phase: str | None = None
    where: str | None = None
    peer: int | None = None
    """The other side of a message, where the group has more ranks than both."""
    queued: bool = True
    """False for a message that begins at once, whatever else is in the queue of its group: as gloo's, and as those
    that NCCL gets in one batch."""

    @property
    def meets(self) -> bool:
        """True where nobody's data moves before all are there."""
        return self.op not in ("broadcast", "scatter", "gather")

    @property
    def size(self) -> int:
        """How many ranks take part."""
        return 2 if self.peer is not None else len(self.group)

    def needs(self, rank: int) -> str:
        """Whom a rank waits for: all, root, nobody. The root of a scatter or gather meets each of the others; that of
        a broadcast sends into buffers."""
        if self.meets or (self.op != "broadcast" and rank == self.root):
            return "all"
        return "nobody" if rank == self.root else "root"


class Wait(NamedTuple):
    """The thread stands still until a collective has ended on this rank."""

    key: Key
    shown: bool = True
    """False where no slice of the timeline shows it, as at the end of DDP's backward, or only one around it."""
    operator: bool = False
    """True where the slice is that of the operator `wait_tensor`."""


class Open(NamedTuple):
    """A slice of the timeline begins; all until its `Close` lies inside."""

    name: str
    category: str = "cpu_op"
    where: str | None = None
    """Path of the module that made the node of autograd which runs here."""


class Close(NamedTuple):
    """The slice that was opened last ends."""


class StepEnd(NamedTuple):
    """The next step begins."""


Instruction = Work | Fetch | Call | Wait | Open | Close | StepEnd
Program = list[Instruction]
