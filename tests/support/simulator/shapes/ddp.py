"""DistributedDataParallel: buckets are reduced while backward goes on."""

from __future__ import annotations

from dataclasses import dataclass

from support.simulator.maker import US, Maker
from support.simulator.program import Key
from support.simulator.shapes.axis import EVERYBODY, Axis
from support.simulator.shapes.model import Compute, Model, plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicated:
    """Forward and backward of a model; what is left of its buckets is waited for at the end of backward."""

    model: Model
    replicas: Axis = EVERYBODY
    compute: Compute = plain
    loss_ns: float = 200 * US
    """On the host, between forward and backward."""
    passes: int = 1
    """Forward and backward so often; all but the last with no_sync."""
    shown: bool = False
    """True where a slice shows the waits; DDP's are in C++."""

    def __call__(self, job: Maker, rank: int) -> None:
        for left in reversed(range(self.passes)):
            self.forward(job, rank)
            self.backward(job, rank, synced=not left)

    def forward(self, job: Maker, rank: int) -> None:
        """Up to the loss."""
        for _, layer in self.model.in_order("forward"):
            self.compute(job, rank, "forward", layer)
        if self.loss_ns:
            job.work(rank, "host", None, self.loss_ns)

    def backward(self, job: Maker, rank: int, *, synced: bool = True) -> None:
        """From the loss; the reducer waits for buckets in their order."""
        keys: list[Key] = []
        for number, layer in self.model.in_order("backward"):
            self.compute(job, rank, "backward", layer)
            if synced:
                keys += self._reduce(job, rank, number)
        for key in keys:
            job.wait(rank, key, shown=self.shown)

    def _reduce(self, job: Maker, rank: int, layer: int) -> list[Key]:
        group = self.replicas.group(job.num_ranks, rank)
        return [job.call(rank, ("bucket", self.model.layers[0].path, number), "all_reduce", group, bucket.num_bytes,
                         bucket.ns, phase="backward")
                for number, bucket in enumerate(self.model.buckets) if bucket.after == layer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Adversaries:
    """A generator and a discriminator, with an optimizer each."""

    generator: Replicated
    discriminator: Replicated
    optimizer_ns: float = 500 * US

    def __call__(self, job: Maker, rank: int) -> None:
        self.generator.forward(job, rank)
        self.discriminator(job, rank)
        job.work(rank, "optimizer", None, self.optimizer_ns)
        self.discriminator.forward(job, rank)
        self.discriminator.backward(job, rank, synced=False)
        self.generator.backward(job, rank)
        job.work(rank, "optimizer", None, self.optimizer_ns)
