"""What the merge draws itself, as data: steps, collectives with their arrows, counters."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from typing import Any, NamedTuple

DRAWN = "distprof"
"""Category of what the merge draws itself."""
BYTES_DRAWN = 1600
"""Text that a collective takes on a rank, with its parts, the ends of its arrows and the counters; hardly ever more."""
BYTES_COUNTED = 160
"""Text that the counters take for an allocation or a free."""
PROCESS = "collectives"
"""The process with the counters of the whole job, and the beginning of the names of the ranks' threads."""


class DrawnSlice(NamedTuple):
    """A named span of the common clock."""

    name: str
    start_ns: int
    end_ns: int


class ArrowEnd(NamedTuple):
    """One end of an arrow."""

    phase: str
    """s where it starts, f where it ends."""
    number: int
    at_ns: int
    name: str = "waited for"


class DrawnCollective(NamedTuple):
    """A collective, or a piece of the longest chain, on one rank."""

    thread: str
    """Name of the thread it is drawn on; nothing else on it overlaps."""
    slice: DrawnSlice
    parts: tuple[DrawnSlice, ...]
    """Waiting and moving, inside of it."""
    args: dict[str, Any]
    arrows: tuple[ArrowEnd, ...]


class DrawnTensor(NamedTuple):
    """A tensor while it lived, on a lane on which no other one lives meanwhile."""

    device: str
    lane: int
    slice: DrawnSlice
    args: dict[str, Any]


class CounterValue(NamedTuple):
    """A counter from an instant on."""

    what: str
    """ranks, bytes, the memory of a device, or the queue of a stream."""
    state: str
    """waiting, in flight, allocated, reserved or commands; Perfetto calls the counter by both."""
    at_ns: int
    value: int


def free_lanes(owners: Iterable[Hashable], starts: Iterable[int], ends: Iterable[int]) -> Iterator[int]:
    """The lane of each slice: the fewest that keep those of one owner apart, by greedy interval partitioning.

    (Kleinberg and Tardos, Algorithm Design, 4.1.) Lane 0 is that of the owner itself.

    Args:
        owners: Whose lanes each slice may take, like those of a thread.
        starts: When each begins, ascending.
        ends: When each ends, behind its start.
    """
    taken: dict[Hashable, list[tuple[int, int]]] = defaultdict(list)  # end and number of each lane
    for owner, start, end in zip(owners, starts, ends, strict=True):
        free = taken[owner]
        lane = heapq.heappop(free)[1] if free and free[0][0] <= start else len(free)
        heapq.heappush(free, (end, lane))
        yield lane
