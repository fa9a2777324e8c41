"""Runs programs of ranks event by event: threads, the queue of each process group, and its lanes."""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from support.simulator.program import Call, Group, Instruction, Key, Program, StepEnd, Wait, Work


@dataclass(frozen=True, slots=True)
class Done:
    """An instruction and when the thread was in it; ns since the job began."""

    instruction: Instruction
    start_ns: int
    end_ns: int


@dataclass(slots=True)
class Moved:
    """A collective on one rank."""

    call: Call
    rank: int
    called_ns: int
    began_ns: int = -1
    ended_ns: int = -1
    moves: bool = False


@dataclass(slots=True)
class _Queue:
    """What one rank has handed to the backend for one group: first in, first out."""

    free: int
    waiting: deque[Moved] = field(default_factory=deque)


class Simulation:
    """What happened.

    Args:
        programs: Of each rank.
        lanes: How many collectives of a group a rank moves at once: 1 as NCCL, 2 as gloo.
    """

    def __init__(self, programs: Sequence[Program], *, lanes: int = 1) -> None:
        self.programs = programs
        self.done: list[list[Done]] = [[] for _ in programs]
        self.moved: list[list[Moved]] = [[] for _ in programs]
        """Of each rank, in the order of its calls."""
        self._at = [0] * len(programs)
        self._queues: dict[tuple[int, Group], _Queue] = defaultdict(lambda: _Queue(lanes))
        self._there: dict[Key, dict[int, Moved]] = defaultdict(dict)
        self._begun: dict[Key, int] = defaultdict(int)
        self._blocked: dict[tuple[int, Key], int] = {}
        self._heap: list[tuple[int, int, Callable[[int], None]]] = []
        self._number = 0
        for rank in range(len(programs)):
            self._later(0, lambda now, rank=rank: self._advance(rank, now))
        while self._heap:
            now, _, act = heapq.heappop(self._heap)
            act(now)
        stuck = [rank for rank, program in enumerate(programs) if self._at[rank] < len(program)]
        assert not stuck, f"ranks {stuck} never end"

    def step_ends(self, rank: int) -> list[int]:
        """When each step ended."""
        return [one.end_ns for one in self.done[rank] if isinstance(one.instruction, StepEnd)]

    def step_ns(self, rank: int) -> float:
        """Mean of all steps but the first."""
        ends = self.step_ends(rank)
        return (ends[-1] - ends[0]) / (len(ends) - 1)

    def _later(self, when: int, act: Callable[[int], None]) -> None:
        self._number += 1
        heapq.heappush(self._heap, (when, self._number, act))

    def _advance(self, rank: int, now: int) -> None:
        while self._at[rank] < len(self.programs[rank]):
            one = self.programs[rank][self._at[rank]]
            if isinstance(one, Wait) and self._there[one.key][rank].ended_ns < 0:
                self._blocked[rank, one.key] = now
                return
            self._at[rank] += 1
            if isinstance(one, Call):
                self._hand_over(Moved(one, rank, now), now)
            end = now + (one.ns if isinstance(one, Work) else one.call_ns if isinstance(one, Call) else 0)
            self.done[rank].append(Done(one, now, end))
            if end > now:
                self._later(end, lambda then: self._advance(rank, then))
                return

    def _hand_over(self, moved: Moved, now: int) -> None:
        self.moved[moved.rank].append(moved)
        self._there[moved.call.key][moved.rank] = moved
        queue = self._queues[moved.rank, moved.call.group]
        queue.waiting.append(moved)
        self._take(queue, now)

    def _take(self, queue: _Queue, now: int) -> None:
        while queue.free and queue.waiting:
            moved = queue.waiting.popleft()
            queue.free -= 1
            self._later(now + moved.call.latency_ns, lambda then, moved=moved: self._begin(moved, then))

    def _begin(self, moved: Moved, now: int) -> None:
        moved.began_ns = now
        there, call = self._there[moved.call.key], moved.call
        self._begun[call.key] += 1
        if call.meets:
            if self._begun[call.key] == len(call.group):
                self._move(list(there.values()), now)
            return
        root = there.get(call.root)
        if root is None or root.began_ns < 0:
            return
        self._move([one for one in there.values() if one.began_ns >= 0 and not one.moves], now)

    def _move(self, ready: Sequence[Moved], now: int) -> None:
        for one in ready:
            one.moves = True
            self._later(now + one.call.ns, lambda then, one=one: self._end(one, then))

    def _end(self, moved: Moved, now: int) -> None:
        moved.ended_ns = now
        queue = self._queues[moved.rank, moved.call.group]
        queue.free += 1
        self._take(queue, now)
        since = self._blocked.pop((moved.rank, moved.call.key), None)
        if since is not None:
            self.done[moved.rank].append(Done(self.programs[moved.rank][self._at[moved.rank]], since, now))
            self._at[moved.rank] += 1
            self._advance(moved.rank, now)
