"""Writes programs of ranks; all that varies is drawn here, in the order of the program.

Every duration is drawn before the job runs, so that the same job without what was planted is the truth of its cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from support.simulator.plant import Plant
from support.simulator.program import Call, Close, Fetch, Group, Key, Open, Program, StepEnd, Wait, Work

US = 1000
JITTERS: dict[str, Callable[[np.random.Generator, float], float]] = {
    "normal": lambda random, size: 1 + size * random.standard_normal(),
    "exponential": lambda random, size: 1 + size * random.exponential(),
    "lognormal": lambda random, size: np.exp(2 * size * random.standard_normal()),
}
"""By what a duration is multiplied, of a size that is a part of it."""


@dataclass(slots=True)
class Maker:
    """Writes the programs of all ranks.

    Args:
        num_ranks: Of the job.
        seed: Of all that varies.
        jitter: Standard deviation of a duration, or so, as a part of it.
        plants: Delays; where a rank does what one names, it takes that much longer.
        jitter_kind: A key of `JITTERS`.
    """

    num_ranks: int
    seed: int
    jitter: float = 0.02
    plants: Sequence[Plant] = ()
    jitter_kind: str = "normal"
    slow_steps: int = 0
    """In so many steps at first, work takes longer,"""
    slower_ratio: float = 0.0
    """by this part."""
    programs: list[Program] = field(default_factory=list)
    step: int = 0
    _random: list[np.random.Generator] = field(default_factory=list)
    _planted: dict[int, list[Plant]] = field(default_factory=dict)
    _groups: dict[Group, int] = field(default_factory=dict)
    _called: list[Counter[tuple[object, int]]] = field(default_factory=list)
    """Of each rank, how often in this step it called what has one name; keys differ by this."""

    def __post_init__(self) -> None:
        self.programs = [[] for _ in range(self.num_ranks)]
        self._random = [np.random.default_rng([self.seed, rank]) for rank in range(self.num_ranks)]
        self._called = [Counter() for _ in range(self.num_ranks)]
        for one in self.plants:
            self._planted.setdefault(one.rank, []).append(one)

    def random(self, rank: int) -> np.random.Generator:
        """What else varies on a rank; how much is drawn must not depend on plants."""
        return self._random[rank]

    def work(self, rank: int, kind: str, where: str | None, ns: float) -> None:
        """A rank is busy for about so long."""
        self.programs[rank].append(Work(kind, where, self._drawn_ns(rank, kind, where, ns)))

    def fetch(self, rank: int, ns: float, workers: int, prefetch: int) -> None:
        """A rank takes a batch that a worker of its loader needs about so long for."""
        self.programs[rank].append(Fetch(self._drawn_ns(rank, "data", None, ns), workers, prefetch))

    def call(self, rank: int, name: object, op: str, group: Group, num_bytes: int, ns: float, *,
             root: int | None = None, phase: str | None = None, where: str | None = None, peer: int | None = None,
             queued: bool = True) -> Key:
        """A rank hands a collective over; the key to wait for it."""
        random, number = self._random[rank], self._groups.setdefault(group, len(self._groups))
        self._called[rank][name, number] += 1
        key = (self.step, name, number, self._called[rank][name, number])
        moves_ns, latency_ns = round(ns * (1 + 0.2 * random.random())), round((5 + 25 * random.random()) * US)
        self.programs[rank].append(Call(
            key, op, group, num_bytes, moves_ns, latency_ns, 5 * US, root, phase, where, peer, queued))
        return key

    def wait(self, rank: int, key: Key, *, shown: bool = True, operator: bool = False) -> None:
        """A rank stands still until it has ended."""
        self.programs[rank].append(Wait(key, shown, operator))

    @contextmanager
    def inside(self, rank: int, name: str, category: str = "cpu_op", where: str | None = None) -> Iterator[None]:
        """What a rank does here lies inside a slice."""
        self.programs[rank].append(Open(name, category, where))
        yield
        self.programs[rank].append(Close())

    def end_step(self) -> None:
        """On all ranks."""
        for program, called in zip(self.programs, self._called, strict=True):
            program.append(StepEnd())
            called.clear()
        self.step += 1

    def _drawn_ns(self, rank: int, kind: str, where: str | None, ns: float) -> int:
        ns *= 1 + self.slower_ratio * (self.step < self.slow_steps)
        drawn = round(max(ns * JITTERS[self.jitter_kind](self._random[rank], self.jitter), 1))
        return drawn + sum(one.late_ns(self.step, drawn, self.seed) for one in self._planted.get(rank, ())
                           if one.touches(kind, where))


Shape = Callable[[Maker], None]
"""Adds one step to all ranks."""
Part = Callable[[Maker, int], None]
"""Adds a part of a step to one rank."""


def steps_of(*parts: Part) -> Shape:
    """A job in which every rank does the same parts, one after the other."""
    def add(job: Maker) -> None:
        for rank in range(job.num_ranks):
            for part in parts:
                part(job, rank)
        job.end_step()

    return add


def programs(shape: Shape, num_ranks: int, num_steps: int, seed: int, *, plants: Sequence[Plant] = (),
             jitter: float = 0.02, jitter_kind: str = "normal", slow_steps: int = 0,
             slower_ratio: float = 0.0) -> list[Program]:
    """Programs of a job of so many steps."""
    job = Maker(num_ranks, seed, jitter, plants, jitter_kind, slow_steps, slower_ratio)
    for _ in range(num_steps):
        shape(job)
    return job.programs
