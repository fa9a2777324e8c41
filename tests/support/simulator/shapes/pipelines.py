"""Pipelines: the order in which a stage runs its microbatches, and the messages between stages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from support.simulator.maker import US, Maker
from support.simulator.program import Key
from support.simulator.shapes.axis import Axis
from support.simulator.shapes.model import Compute, Model, plain


class Action(NamedTuple):
    """A stage runs a microbatch through one of its chunks."""

    phase: str
    batch: int
    chunk: int = 0


Schedule = Callable[[int, int, int, int], list[Action]]
"""Number of a stage, stages, microbatches and chunks of a stage -> what it does."""


def gpipe(stage: int, stages: int, batches: int, chunks: int = 1) -> list[Action]:
    """All forward passes before all backward ones."""
    return [*(Action("forward", batch) for batch in range(batches)),
            *(Action("backward", batch) for batch in range(batches))]


def one_f_one_b(stage: int, stages: int, batches: int, chunks: int = 1) -> list[Action]:
    """As many forward passes as there are stages behind; then a backward one after each."""
    early = min(stages - stage - 1, batches)
    actions = [Action("forward", batch) for batch in range(early)]
    for batch in range(batches - early):
        actions += [Action("forward", early + batch), Action("backward", batch)]
    return actions + [Action("backward", batch) for batch in range(batches - early, batches)]


def interleaved(stage: int, stages: int, batches: int, chunks: int = 2) -> list[Action]:
    """1F1B where a rank holds several stages; microbatches are a multiple of the ranks."""
    total = batches * chunks
    early = min((stages - stage - 1) * 2 + (chunks - 1) * stages, total)

    def action(phase: str, number: int) -> Action:
        chunk = number % (stages * chunks) // stages
        return Action(phase, number // (stages * chunks) * stages + number % stages,
                      chunk if phase == "forward" else chunks - 1 - chunk)

    actions = [action("forward", number) for number in range(early)]
    for number in range(total - early):
        actions += [action("forward", early + number), action("backward", number)]
    return actions + [action("backward", number) for number in range(total - early, total)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Forward and backward of all microbatches on one rank."""

    axis: Axis
    chunks: tuple[Model, ...]
    """Of all stages, in the order of forward; chunk c of stage s is number c * stages + s."""
    schedule: Schedule = gpipe
    batches: int = 4
    compute: Compute = plain
    num_bytes: int = 1 << 18
    ns: float = 100 * US
    pairs: bool = False
    """True where each pair of ranks has a group of its own, whose messages wait for each other, and where a sender
    waits for each message."""
    shown: bool = True

    def __call__(self, job: Maker, rank: int) -> None:
        group = self.axis.group(job.num_ranks, rank)
        stages, stage = len(group), group.index(rank)
        sent: list[Key] = []
        for action in self.schedule(stage, stages, self.batches, len(self.chunks) // stages):
            number = action.chunk * stages + stage
            step = 1 if action.phase == "forward" else -1
            self._message(job, rank, number - step, number, action, sent)
            for _, layer in self.chunks[number].in_order(action.phase):
                self.compute(job, rank, action.phase, layer)
            self._message(job, rank, number, number + step, action, sent)
        for key in sent:
            job.wait(rank, key, shown=self.shown)

    def _message(self, job: Maker, rank: int, source: int, target: int, action: Action, sent: list[Key]) -> None:
        group = self.axis.group(job.num_ranks, rank)
        sender, receiver = group[source % len(group)], group[target % len(group)]
        if not (0 <= source < len(self.chunks) and 0 <= target < len(self.chunks)) or sender == receiver:
            return
        op, peer = ("send", receiver) if rank == sender else ("recv", sender)
        key = job.call(rank, (action.phase, action.batch, source, target), op,
                       (min(rank, peer), max(rank, peer)) if self.pairs else group, self.num_bytes, self.ns,
                       peer=peer, queued=self.pairs)
        if op == "send" and not self.pairs:
            sent.append(key)
        else:
            job.wait(rank, key, shown=self.shown)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageGradients:
    """The ranks of a stage sum up the gradients of its chunks behind the last microbatch."""

    pipeline: Pipeline
    replicas: Axis
    shown: bool = False

    def __call__(self, job: Maker, rank: int) -> None:
        stages = self.pipeline.axis.group(job.num_ranks, rank)
        mine = self.pipeline.chunks[stages.index(rank)::len(stages)]
        group = self.replicas.group(job.num_ranks, rank)
        keys = [job.call(rank, ("gradients", bucket.after, chunk), "all_reduce", group, bucket.num_bytes, bucket.ns,
                         phase="backward") for chunk, model in enumerate(mine) for bucket in model.buckets]
        for key in keys:
            job.wait(rank, key, shown=self.shown)
