"""Runs programs of ranks event by event: the thread of each rank, its loader, and the backend between ranks."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, NamedTuple

from support.simulator.backend import Backend, Moved
from support.simulator.loader import Loader
from support.simulator.program import Call, Fetch, Group, Instruction, Program, StepEnd, Wait, Work

__all__ = ["Done", "Moved", "Simulation"]


class Done(NamedTuple):
    """An instruction and when the thread was in it; ns since the job began."""

    instruction: Instruction
    start_ns: int
    end_ns: int


class _Thread:
    """Where a rank is in its program."""

    __slots__ = ("at", "began_ns", "blocked", "left_ns", "loader", "moving", "number", "program", "rank", "since_ns")

    def __init__(self, rank: int, program: Program) -> None:
        self.rank, self.program, self.at = rank, program, 0
        self.began_ns = 0
        """When the instruction began that is under way."""
        self.blocked: Moved | None = None
        self.left_ns = 0.0
        """Work that was left at `since_ns`, of a thread that is not slowed down; 0: none is under way."""
        self.since_ns = 0
        self.number = 0
        """Of the event that ends the work; others are void, for the speed has changed."""
        self.moving = 0
        self.loader = Loader()


class Simulation:
    """What happened.

    Args:
        programs: Of each rank.
        lanes: How many collectives of a group a rank moves at once: 1 as NCCL, 2 as gloo.
        slowdown: How much longer a thread works while its backend moves data, as a part: they share a core.
    """

    def __init__(self, programs: Sequence[Program], *, lanes: int = 1, slowdown: float = 0.0) -> None:
        self.programs = programs
        self.done: list[list[Done]] = [[] for _ in programs]
        self.moved: list[list[Moved]] = [[] for _ in programs]
        """Of each rank, in the order of its calls."""
        self._step_ends: list[list[int]] = [[] for _ in programs]
        self._slowdown = slowdown
        self._heap: list[tuple[int, int, Callable[[Any, int], None], Any]] = []
        self._numbers = count()
        self._threads = [_Thread(rank, program) for rank, program in enumerate(programs)]
        self._backend = Backend(lanes, self._later, self._moves, self._ended)
        self._run()

    def step_ends(self, rank: int) -> list[int]:
        """When each step ended."""
        return self._step_ends[rank]

    def step_ns(self, rank: int) -> float:
        """Mean of all steps but the first."""
        ends = self._step_ends[rank]
        return (ends[-1] - ends[0]) / (len(ends) - 1)

    def ranks_with(self, rank: int) -> list[int]:
        """The ranks that a rank meets, those that they meet, and so on."""
        groups = {one.call.group: None for moved in self.moved for one in moved}
        found: set[int] = {rank}
        left: list[Group] = list(groups)
        while touched := [group for group in left if not found.isdisjoint(group)]:
            left = [group for group in left if found.isdisjoint(group)]
            found.update(*touched)
        return sorted(found)

    def _run(self) -> None:
        for thread in self._threads:
            self._later(0, self._advance, thread)
        heap, take = self._heap, heapq.heappop
        while heap:
            now, _, act, argument = take(heap)
            act(argument, now)
        stuck = [thread.rank for thread in self._threads if thread.at < len(thread.program)]
        assert not stuck, f"ranks {stuck} never end"

    def _later(self, when: int, act: Callable[[Any, int], None], argument: Any) -> None:
        heapq.heappush(self._heap, (when, next(self._numbers), act, argument))

    def _advance(self, thread: _Thread, now: int) -> None:
        """Goes on from the next instruction up to one that takes time."""
        program, done = thread.program, self.done[thread.rank]
        while thread.at < len(program):
            one = program[thread.at]
            kind, end = type(one), now
            if kind is Wait and self._waits(thread, one, now):
                return
            if kind is Work:
                self._work(thread, one.ns, now)
                return
            if kind is Call:
                end += one.call_ns
                self._call(thread.rank, one, now)
            elif kind is Fetch:
                end = thread.loader.fetch(one, now)
            elif kind is StepEnd:
                self._step_ends[thread.rank].append(now)
            thread.at += 1
            done.append(Done(one, now, end))
            if end > now:
                self._later(end, self._advance, thread)
                return

    def _call(self, rank: int, call: Call, now: int) -> None:
        moved = Moved(call, rank, now)
        self.moved[rank].append(moved)
        self._backend.hand_over(moved, now)

    def _waits(self, thread: _Thread, wait: Wait, now: int) -> bool:
        """True where the thread stands still from now on."""
        moved = self._backend.of(wait.key, thread.rank)
        first = moved.wait_start_ns < 0
        if first:
            moved.wait_start_ns = now
        if moved.ended_ns >= 0:
            moved.wait_end_ns = now if first else moved.wait_end_ns
            return False
        thread.blocked, thread.began_ns = moved, now
        return True

    def _ended(self, moved: Moved, now: int) -> None:
        thread = self._threads[moved.rank]
        if thread.blocked is moved:
            thread.blocked = None
            moved.wait_end_ns = now
            self._finish(thread, now)

    def _finish(self, thread: _Thread, now: int) -> None:
        self.done[thread.rank].append(Done(thread.program[thread.at], thread.began_ns, now))
        thread.at += 1
        self._advance(thread, now)

    # --- work, and what slows it down -----------------------------------------------------------------------------

    def _work(self, thread: _Thread, ns: int, now: int) -> None:
        thread.began_ns = now
        if self._slowdown:
            thread.left_ns = float(ns)
            self._go_on(thread, now)
        else:
            self._later(now + ns, self._finish, thread)

    def _go_on(self, thread: _Thread, now: int) -> None:
        thread.since_ns, thread.number = now, thread.number + 1
        end = now + max(round(thread.left_ns * self._pace(thread)), 0)
        self._later(end, self._work_ends, (thread, thread.number))

    def _pace(self, thread: _Thread) -> float:
        return 1 + self._slowdown if thread.moving else 1

    def _work_ends(self, which: tuple[_Thread, int], now: int) -> None:
        thread, number = which
        if thread.number == number:
            thread.left_ns = 0
            self._finish(thread, now)

    def _moves(self, rank: int, now: int, more: int) -> None:
        if not self._slowdown:
            return
        thread = self._threads[rank]
        pace, thread.moving = self._pace(thread), thread.moving + more
        if thread.left_ns and pace != self._pace(thread):
            thread.left_ns -= min((now - thread.since_ns) / pace, thread.left_ns - 1e-3)
            self._go_on(thread, now)
