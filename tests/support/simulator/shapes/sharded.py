"""FSDP2: parameters are gathered ahead of a layer, gradients scattered behind it, and summed up over replicas."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

from support.simulator.maker import Maker
from support.simulator.program import Key
from support.simulator.shapes.axis import EVERYBODY, Axis
from support.simulator.shapes.model import Compute, Layer, Model, plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharded:
    """Forward and backward of a sharded model."""

    model: Model
    shards: Axis = EVERYBODY
    replicas: Axis | None = None
    """HSDP: what is scattered is summed up over these."""
    compute: Compute = plain
    ahead: tuple[int, int] = (1, 1)
    """How many layers are gathered before they are needed, in forward and in backward."""
    order: str = "issued"
    """In which gradients are waited for: issued, reversed, shuffled."""
    gathers_again: bool = True
    """False where layers stay whole until backward."""
    shown: bool = True
    in_hooks: bool = False
    """True where slices of FSDP's hooks lie around the waits for parameters."""

    def __call__(self, job: Maker, rank: int) -> None:
        self._layers(job, rank, "forward", self.ahead[0])
        left = self._layers(job, rank, "backward", self.ahead[1])
        if self.order == "shuffled":
            left = [left[number] for number in job.random(rank).permutation(len(left))]
        for key in left[::-1] if self.order == "reversed" else left:
            job.wait(rank, key, shown=self.shown)

    def _layers(self, job: Maker, rank: int, phase: str, ahead: int) -> list[Key]:
        layers = [layer for _, layer in self.model.in_order(phase)]
        gathered: list[Key] = []
        scattered: list[tuple[Layer, Key]] = []
        left: list[Key] = []
        gathers = phase == "forward" or self.gathers_again
        for number, layer in enumerate(layers):
            wanted = layers[len(gathered):number + ahead + 1] if gathers else []
            gathered += [self._call(job, rank, "all_gather", phase, one) for one in wanted]
            if gathers:
                self._wait_to_compute(job, rank, phase, layer, gathered[number])
            self.compute(job, rank, phase, layer)
            if phase == "backward":
                left += self._scatter(job, rank, layer, scattered)
        return left + self._sum_up(job, rank, scattered)

    def _wait_to_compute(self, job: Maker, rank: int, phase: str, layer: Layer, key: Key) -> None:
        hook = job.inside(rank, f"FSDP::pre_{phase} ({layer.path})", "user_annotation")
        with hook if self.in_hooks else nullcontext():
            job.wait(rank, key, shown=self.shown)

    def _call(self, job: Maker, rank: int, op: str, phase: str, layer: Layer) -> Key:
        return job.call(rank, (op, phase, layer.path), op, self.shards.group(job.num_ranks, rank), layer.num_bytes,
                        layer.comm_ns, phase=phase)

    def _scatter(self, job: Maker, rank: int, layer: Layer, scattered: list[tuple[Layer, Key]]) -> list[Key]:
        """Where there are replicas, the layer before is first summed up over them."""
        summed = self._sum_up(job, rank, scattered)
        scattered.append((layer, self._call(job, rank, "reduce_scatter", "backward", layer)))
        return summed

    def _sum_up(self, job: Maker, rank: int, scattered: list[tuple[Layer, Key]]) -> list[Key]:
        taken, scattered[:] = scattered[:], []
        keys = []
        for layer, key in taken:
            if self.replicas is None:
                keys.append(key)
                continue
            job.wait(rank, key, shown=self.shown)
            group = self.replicas.group(job.num_ranks, rank)
            keys.append(job.call(rank, ("sum", layer.path), "all_reduce", group, layer.num_bytes // len(
                self.shards.group(job.num_ranks, rank)) // 4 * 4 + 4, layer.comm_ns / 2, phase="backward"))
        return keys
