"""Jobs as people run them: DDP with buckets, tensor x data parallel, FSDP with prefetch, a pipeline, roots.

Every duration is drawn before the job runs, so that the same job without what was planted is the truth of its cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from support.simulator.program import Call, Group, Program, StepEnd, Wait, Work

US = 1000


@dataclass(frozen=True, slots=True)
class Plant:
    """A delay of one rank."""

    rank: int
    kind: str
    where: str | None
    ns: int
    every: int = 1
    """In each so-manieth step."""


@dataclass(slots=True)
class Maker:
    """Writes the programs of all ranks.

    Args:
        num_ranks: Of the job.
        seed: Of all that varies.
        jitter: Standard deviation of a duration, as a part of it.
        plants: Delays; where a rank does what one names, it takes that much longer.
    """

    num_ranks: int
    seed: int
    jitter: float = 0.02
    plants: Sequence[Plant] = ()
    programs: list[Program] = field(default_factory=list)
    step: int = 0
    _random: list[np.random.Generator] = field(default_factory=list)
    _calls: count[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        self.programs = [[] for _ in range(self.num_ranks)]
        self._random = [np.random.default_rng([self.seed, rank]) for rank in range(self.num_ranks)]

    def work(self, rank: int, kind: str, where: str | None, ns: float) -> None:
        """A rank is busy for about so long."""
        drawn = max(ns * (1 + self.jitter * self._random[rank].standard_normal()), 1)
        late = sum(one.ns for one in self.plants if (one.rank, one.kind, one.where) == (rank, kind, where)
                   and self.step % one.every == one.every - 1)
        self.programs[rank].append(Work(kind, where, round(drawn) + late))

    def call(self, rank: int, name: object, op: str, group: Group, num_bytes: int, ns: float, *,
             root: int | None = None, phase: str | None = None, where: str | None = None) -> tuple[object, ...]:
        """A rank hands a collective over; the key to wait for it."""
        random = self._random[rank]
        key = (self.step, name, group)
        self.programs[rank].append(Call(
            key, op, group, num_bytes, round(ns * random.uniform(1, 1.2)), round(random.uniform(5, 30) * US), 5 * US,
            root, phase, where))
        return key

    def wait(self, rank: int, key: tuple[object, ...], *, shown: bool = True) -> None:
        """A rank stands still until it has ended."""
        self.programs[rank].append(Wait(key, shown))

    def end_step(self) -> None:
        """On all ranks."""
        for program in self.programs:
            program.append(StepEnd())
        self.step += 1


Shape = Callable[[Maker], None]
"""Adds one step."""
LAYERS = 6
FORWARD_NS, BACKWARD_NS, BUCKET_NS = 1000 * US, 2000 * US, 1500 * US


def ddp(job: Maker) -> None:
    """Buckets are reduced while backward goes on; what is left is waited for at its end, where no slice shows it."""
    everybody = tuple(range(job.num_ranks))
    for rank in everybody:
        _begin_step(job, rank)
        keys = []
        for layer in reversed(range(LAYERS)):
            job.work(rank, "backward", f"layers.{layer}", BACKWARD_NS)
            keys.append(job.call(rank, layer, "all_reduce", everybody, 4 << 20, BUCKET_NS, phase="backward"))
        for key in keys:
            job.wait(rank, key, shown=False)
        _end_step(job, rank)
    job.end_step()


def tp_dp(job: Maker, tp: int = 4) -> None:
    """Each layer adds up over the tensor-parallel group, at once; gradients over the data-parallel one at the end."""
    for rank in range(job.num_ranks):
        mine = tuple(range(rank // tp * tp, rank // tp * tp + tp))
        replicas = tuple(range(rank % tp, job.num_ranks, tp))
        _begin_step(job, rank, layers=0)
        for phase, ns, layers in (("forward", FORWARD_NS, range(LAYERS)),
                                  ("backward", BACKWARD_NS, reversed(range(LAYERS)))):
            for layer in layers:
                job.work(rank, phase, f"layers.{layer}", ns)
                job.wait(rank, job.call(rank, (phase, layer), "all_reduce", mine, 1 << 20, 200 * US, phase=phase,
                                        where=f"layers.{layer}" if phase == "forward" else None))
        keys = [job.call(rank, ("bucket", number), "all_reduce", replicas, 4 << 20, BUCKET_NS, phase="backward")
                for number in range(2)]
        for key in keys:
            job.wait(rank, key, shown=False)
        _end_step(job, rank)
    job.end_step()


def fsdp(job: Maker) -> None:
    """Parameters of the next layer are gathered while one computes; gradients are scattered behind each layer."""
    everybody = tuple(range(job.num_ranks))
    for rank in everybody:
        _begin_step(job, rank, layers=0)
        scattered = []
        for phase, ns, layers in (("forward", FORWARD_NS, list(range(LAYERS))),
                                  ("backward", BACKWARD_NS, list(reversed(range(LAYERS))))):
            ahead = job.call(rank, (phase, layers[0]), "all_gather", everybody, 2 << 20, 700 * US, phase=phase)
            for layer, following in zip(layers, [*layers[1:], None], strict=True):
                mine = ahead
                if following is not None:
                    ahead = job.call(rank, (phase, following), "all_gather", everybody, 2 << 20, 700 * US, phase=phase)
                job.wait(rank, mine)
                job.work(rank, phase, f"layers.{layer}", ns)
                if phase == "backward":
                    scattered.append(job.call(rank, ("scatter", layer), "reduce_scatter", everybody, 2 << 20,
                                              700 * US, phase=phase))
        for key in scattered:
            job.wait(rank, key)
        _end_step(job, rank)
    job.end_step()


def pipeline(job: Maker, microbatches: int = 4) -> None:
    """A stage a rank, all forward passes before all backward ones; both sides of a message meet."""
    stages = job.num_ranks
    for rank in range(stages):
        job.work(rank, "data", None, 200 * US)
        for phase, ns, step in (("forward", FORWARD_NS, 1), ("backward", BACKWARD_NS, -1)):
            for batch in range(microbatches):
                before, after = rank - step, rank + step
                if 0 <= before < stages:
                    _message(job, rank, before, rank, (phase, batch))
                job.work(rank, phase, f"stage.{rank}", ns)
                if 0 <= after < stages:
                    _message(job, rank, rank, after, (phase, batch))
        _end_step(job, rank)
    job.end_step()


def pp_dp(job: Maker, stages: int = 2, microbatches: int = 4) -> None:
    """A pipeline a replica; the ranks of a stage sum up their gradients, in two buckets."""
    for rank in range(job.num_ranks):
        stage, first = rank % stages, rank - rank % stages
        job.work(rank, "data", None, 200 * US)
        for phase, ns, step in (("forward", FORWARD_NS, 1), ("backward", BACKWARD_NS, -1)):
            for batch in range(microbatches):
                if 0 <= stage - step < stages:
                    _message(job, rank, rank - step, rank, (phase, batch, first))
                job.work(rank, phase, f"stage.{stage}", ns)
                if 0 <= stage + step < stages:
                    _message(job, rank, rank, rank + step, (phase, batch, first))
        replicas = tuple(range(stage, job.num_ranks, stages))
        for key in [job.call(rank, ("bucket", number), "all_reduce", replicas, 4 << 20, BUCKET_NS, phase="backward")
                    for number in range(2)]:
            job.wait(rank, key, shown=False)
        _end_step(job, rank)
    job.end_step()


def rooted(job: Maker) -> None:
    """Rank 0 sends buffers to all at the start of a step, and sums up the loss at its end; gradients in between."""
    everybody = tuple(range(job.num_ranks))
    for rank in everybody:
        job.work(rank, "data", None, 300 * US)
        job.wait(rank, job.call(rank, "buffers", "broadcast", everybody, 1 << 16, 100 * US, root=0))
        for layer in range(LAYERS):
            job.work(rank, "forward", f"layers.{layer}", FORWARD_NS)
        job.work(rank, "backward", "layers.0", LAYERS * BACKWARD_NS)
        job.wait(rank, job.call(rank, "gradients", "all_reduce", everybody, 24 << 20, 4 * BUCKET_NS,
                                phase="backward"), shown=False)
        job.wait(rank, job.call(rank, "loss", "reduce", everybody, 4, 50 * US, root=0))
        _end_step(job, rank)
    job.end_step()


SHAPES: dict[str, Shape] = {"ddp": ddp, "tp_dp": tp_dp, "fsdp": fsdp, "pipeline": pipeline,
                            "pp_dp": pp_dp, "rooted": rooted}


def programs(shape: Shape, num_ranks: int, num_steps: int, seed: int, *, plants: Sequence[Plant] = (),
             jitter: float = 0.02) -> list[Program]:
    """Programs of a job of so many steps."""
    job = Maker(num_ranks, seed, jitter, plants)
    for _ in range(num_steps):
        shape(job)
    return job.programs


def _begin_step(job: Maker, rank: int, layers: int = LAYERS) -> None:
    job.work(rank, "data", None, 300 * US)
    for layer in range(layers):
        job.work(rank, "forward", f"layers.{layer}", FORWARD_NS)
    if layers:
        job.work(rank, "host", None, 200 * US)


def _end_step(job: Maker, rank: int) -> None:
    job.work(rank, "optimizer", None, 800 * US)


def _message(job: Maker, rank: int, sender: int, receiver: int, name: object) -> None:
    op = "send" if rank == sender else "recv"
    key = job.call(rank, ("message", name, sender, receiver), op, (min(sender, receiver), max(sender, receiver)),
                   1 << 18, 100 * US)
    job.wait(rank, key)
