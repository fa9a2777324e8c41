"""What is made up: the job, its noise and its troubles. Nothing here knows how troubles are found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

MS = 1_000_000
S = 1_000_000_000
PHASES = ("data", "forward", "backward", "optimizer")
SHARES = (0.05, 0.3, 0.55, 0.1)
"""Of the work of a step."""


@dataclass(slots=True, kw_only=True)
class Trouble:
    """More work for some ranks from a step on, in each step or with a rhythm."""

    ranks: tuple[int, ...]
    onset: int
    extra_ns: float
    phase: str = "forward"
    until: int | None = None
    every: int = 1
    """Steps from one begin to the next; of these the first `steps` are slow."""
    steps: int = 1

    def when(self, num_steps: int) -> Any:
        """Whether it is there, of each step."""
        number = np.arange(num_steps)
        inside = (number >= self.onset) & (number <= (num_steps if self.until is None else self.until))
        return inside & ((number - self.onset) % self.every < self.steps)


@dataclass(slots=True, kw_only=True)
class Link:
    """Calls of groups that hold both of some pair of hosts move longer, from a step on."""

    hosts: tuple[str, str]
    onset: int
    extra_ns: float
    """Of each call."""


@dataclass(slots=True, kw_only=True)
class Job:
    """A job. Times in nanoseconds; noise is relative to the work of a step, as a standard deviation."""

    world: int = 4
    num_steps: int = 10_000
    step_ns: float = 20.0 * MS
    layout: Literal["dp", "tp", "pp"] = "dp"
    """tp: neighbours in twos, and data parallel across them; pp: a pipeline of all ranks."""
    per_host: int = 8
    jitter: float = 0.03
    """Lognormal, of each piece of work."""
    load: float = 0.02
    """Other programs on the machine: AR(1), of each rank."""
    load_s: float = 2.0
    """The time in which it is forgotten."""
    tail_rate: float = 1e-3
    """Steps of a rank with a Pareto distributed delay of at least 5 % of a step."""
    common_lengths: float = 0.0
    """Sequence lengths that differ from step to step, on all ranks alike."""
    own_lengths: float = 0.0
    """And those of each rank."""
    imbalance: float = 0.005
    """Ranks differ for ever."""
    warm_up: float = 0.3
    """The first steps are slower by that, which decays within 30 steps."""
    pause_every: int = 0
    pause_ns: float = 0.0
    pause_ranks: tuple[int, ...] | None = None
    evaluation: bool = False
    """A note tells what the pauses are."""
    troubles: tuple[Trouble, ...] = ()
    links: tuple[Link, ...] = ()
    leak_bytes: tuple[int, float] | None = None
    """A rank whose memory grows, and by how much per step."""
    leaks_from: int = 0
    """The step from which on it does."""
    stops: tuple[int, int] | None = None
    """A rank that writes nothing more from a step on."""
    blocked_known: bool = True
    ahead: float = 0.0
    """Steps by which hosts run ahead of their devices at most; in every 100th step they wait for them."""
    seed: int = 0

    def host(self, rank: int) -> str:
        """Its name."""
        return f"host{rank // self.per_host}"

    @property
    def hosts(self) -> dict[int, str]:
        """Of all ranks."""
        return {rank: self.host(rank) for rank in range(self.world)}


def work(job: Job) -> Any:
    """Of each step, rank and phase, in nanoseconds."""
    draw = np.random.default_rng(job.seed)
    size = (job.num_steps, job.world)
    lengths = np.exp(draw.normal(0, max(job.common_lengths, 1e-12), job.num_steps))[:, None] * np.exp(
        draw.normal(0, max(job.own_lengths, 1e-12), size))
    slow = 1 + _load(job, draw) + draw.normal(0, job.imbalance, job.world)
    slow *= 1 + job.warm_up * np.exp(-np.arange(job.num_steps) / 10)[:, None]
    of = np.empty((*size, 4))
    for place, share in enumerate(SHARES):
        noise = np.exp(draw.normal(0, job.jitter, size))
        of[:, :, place] = 0.95 * job.step_ns * share * noise * slow * (lengths if PHASES[place] != "optimizer" else 1)
    late = draw.random(size) < job.tail_rate
    of[:, :, 2] += np.where(late, 0.05 * job.step_ns * (1 + draw.pareto(1.5, size)), 0)
    for one in job.troubles:
        when = one.when(job.num_steps)
        for rank in one.ranks:
            of[when, rank, PHASES.index(one.phase)] += one.extra_ns
    if job.pause_every:
        ranks = range(job.world) if job.pause_ranks is None else job.pause_ranks
        of[job.pause_every - 1::job.pause_every, list(ranks), 0] += job.pause_ns
    return of


def _load(job: Job, draw: np.random.Generator) -> Any:
    keep = float(np.exp(-job.step_ns / (job.load_s * S)))
    noise = draw.normal(0, job.load * np.sqrt(1 - keep * keep), (job.num_steps, job.world))
    found, now = np.empty_like(noise), draw.normal(0, job.load, job.world)
    for step in range(job.num_steps):
        now = keep * now + noise[step]
        found[step] = now
    return np.maximum(found, -0.5)
