"""Data of what the merge adds to the events: steps, collectives with their arrows, counters."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from typing import Any, NamedTuple

DRAWN = "distprof"
"""Category of events that the merge adds."""
BYTES_DRAWN = 1600
"""Bytes of text that a collective takes on a rank, with its parts, arrow ends and counters; hardly ever more."""
BYTES_COUNTED = 160
"""Bytes of text that the counters take for an allocation or a free."""
PROCESS = "collectives"
"""Name of the process with the counters of the whole job, and prefix of the names of the ranks' threads."""


class DrawnSlice(NamedTuple):
    """A named span on the common clock."""

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
    """A collective, or a piece of a critical path, on one rank."""

    thread: str
    """Name of the thread it is drawn on; nothing on that thread overlaps."""
    slice: DrawnSlice
    parts: tuple[DrawnSlice, ...]
    """Waiting and moving, within the slice."""
    args: dict[str, Any]
    arrows: tuple[ArrowEnd, ...]


class DrawnTensor(NamedTuple):
    """A tensor during its lifetime, on a lane that no other tensor uses meanwhile."""

    device: str
    lane: int
    slice: DrawnSlice
    args: dict[str, Any]


class CounterValue(NamedTuple):
    """The value of a counter from a point in time on."""

    what: str
    """ranks, bytes, the memory of a device, or the queue of a stream."""
    state: str
    """waiting, in flight, allocated, reserved or commands; Perfetto names the counter after both."""
    at_ns: int
    value: int


def free_lanes(owners: Iterable[Hashable], starts: Iterable[int], ends: Iterable[int]) -> Iterator[int]:
    """Yields the lane of each slice: the fewest that keep those of one owner apart, by greedy interval partitioning.

    (Kleinberg and Tardos, Algorithm Design, 4.1.) Lane 0 is that of the owner itself.

    Args:
        owners: Whose lanes each slice may use, such as a thread.
        starts: Start of each slice, ascending.
        ends: End of each slice, after its start.
    """
    taken: dict[Hashable, list[tuple[int, int]]] = defaultdict(list)  # end and number of each lane
    for owner, start, end in zip(owners, starts, ends, strict=True):
        free = taken[owner]
        lane = heapq.heappop(free)[1] if free and free[0][0] <= start else len(free)
        heapq.heappush(free, (end, lane))
        yield lane
