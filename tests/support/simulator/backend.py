"""The backend that moves data: a queue of each rank and process group, its lanes, and the ranks that meet."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from support.simulator.program import Call, Group, Key

Later = Callable[[int, Callable[[Any, int], None], Any], None]
"""When, what to call, and with what (besides when)."""


@dataclass(slots=True, eq=False)
class Moved:
    """A collective on one rank."""

    call: Call
    rank: int
    called_ns: int
    began_ns: int = -1
    ended_ns: int = -1
    moves: bool = False
    wait_start_ns: int = -1
    """When a thread first waited for it; -1: none did."""
    wait_end_ns: int = -1


@dataclass(slots=True)
class _Queue:
    """What one rank has handed to the backend for one group: first in, first out."""

    free: int
    waiting: deque[Moved] = field(default_factory=deque)


@dataclass(slots=True)
class _Meeting:
    """One collective on all its ranks."""

    there: dict[int, Moved] = field(default_factory=dict)
    """Of those that called it."""
    num_begun: int = 0
    root_began: bool = False
    still: list[Moved] = field(default_factory=list)
    """Begun, and waiting for others."""

    def ready(self, call: Call) -> list[Moved]:
        """Those whose data can move now."""
        if self.num_begun == call.size:
            return self.still
        if call.meets or not self.root_began:
            return []
        return [one for one in self.still if call.needs(one.rank) != "all"]


class Backend:
    """Moves what ranks hand over.

    Args:
        lanes: How many collectives of a group a rank moves at once.
        later: Has something called at a later time.
        moves: Is told the rank, when, and by how many more collectives move on it from then on.
        ended: Is told what has ended.
    """

    def __init__(self, lanes: int, later: Later, moves: Callable[[int, int, int], None],
                 ended: Callable[[Moved, int], None]) -> None:
        self._later, self._moves, self._ended = later, moves, ended
        self._queues: dict[tuple[int, Group], _Queue] = defaultdict(lambda: _Queue(lanes))
        self._meetings: dict[Key, _Meeting] = defaultdict(_Meeting)

    def of(self, key: Key, rank: int) -> Moved:
        """What a rank called."""
        return self._meetings[key].there[rank]

    def hand_over(self, moved: Moved, now: int) -> None:
        """A rank calls a collective."""
        call, there = moved.call, self._meetings[moved.call.key].there
        assert moved.rank not in there and moved.rank in call.group, call
        there[moved.rank] = moved
        if call.queued:
            queue = self._queues[moved.rank, call.group]
            queue.waiting.append(moved)
            self._take(queue, now)
        else:
            self._later(now + call.latency_ns, self._begin, moved)

    def _take(self, queue: _Queue, now: int) -> None:
        while queue.free and queue.waiting:
            moved = queue.waiting.popleft()
            queue.free -= 1
            self._later(now + moved.call.latency_ns, self._begin, moved)

    def _begin(self, moved: Moved, now: int) -> None:
        moved.began_ns = now
        call, meeting = moved.call, self._meetings[moved.call.key]
        meeting.num_begun += 1
        meeting.root_began |= moved.rank == call.root
        if call.needs(moved.rank) == "nobody":
            self._move([moved], now)
        else:
            meeting.still.append(moved)
        if ready := meeting.ready(call):
            self._move(ready, now)
            meeting.still = [one for one in meeting.still if not one.moves]

    def _move(self, ready: Iterable[Moved], now: int) -> None:
        for one in ready:
            one.moves = True
            self._moves(one.rank, now, 1)
            self._later(now + one.call.ns, self._end, one)

    def _end(self, moved: Moved, now: int) -> None:
        moved.ended_ns = now
        self._moves(moved.rank, now, -1)
        if moved.call.queued:
            queue = self._queues[moved.rank, moved.call.group]
            queue.free += 1
            self._take(queue, now)
        self._ended(moved, now)
