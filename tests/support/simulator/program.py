"""What a rank does, instruction by instruction."""

from __future__ import annotations

from dataclasses import dataclass

Group = tuple[int, ...]
Key = tuple[object, ...]
"""Of a collective; equal on the ranks that are in it."""


@dataclass(frozen=True, slots=True)
class Work:
    """The thread of the rank is busy."""

    kind: str
    """data, forward, backward, optimizer, host."""
    where: str | None
    """Path of a module."""
    ns: int


@dataclass(frozen=True, slots=True)
class Call:
    """Hands a collective to the backend, and goes on."""

    key: Key
    op: str
    group: Group
    num_bytes: int
    ns: int
    """How long this rank takes to move its data once the ranks are there that it needs: the root of a broadcast, else
    all. Gloo's reduce, and a send, need the other side too, whatever their names say."""
    latency_ns: int = 0
    """From where a lane is free to where the backend begins."""
    call_ns: int = 0
    """How long the thread is in the call."""
    root: int | None = None
    phase: str | None = None
    where: str | None = None

    @property
    def meets(self) -> bool:
        """False where readers wait for the root, and the root for nobody."""
        return self.op != "broadcast"


@dataclass(frozen=True, slots=True)
class Wait:
    """The thread stands still until a collective has ended on this rank."""

    key: Key
    shown: bool = True
    """False where no slice of the timeline shows it, as at the end of DDP's backward."""


@dataclass(frozen=True, slots=True)
class StepEnd:
    """The next step begins."""


Instruction = Work | Call | Wait | StepEnd
Program = list[Instruction]
