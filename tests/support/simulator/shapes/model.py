"""What ranks compute: layers, how long they take, and the buckets that their gradients lie in."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from support.simulator.maker import US, Maker


class Layer(NamedTuple):
    """A module and its parameters."""

    path: str
    forward_ns: float
    backward_ns: float
    """0: autograd runs nothing of it."""
    num_bytes: int
    comm_ns: float
    """How long its parameters or gradients take to move."""

    def ns(self, phase: str) -> float:
        """How long it computes in forward or backward."""
        return self.forward_ns if phase == "forward" else self.backward_ns


class Bucket(NamedTuple):
    """Gradients that are reduced at once."""

    after: int
    """Number of the layer with whose backward the last of them is there."""
    num_bytes: int
    ns: float


class Model(NamedTuple):
    """Layers in the order of forward, buckets in that of backward."""

    layers: tuple[Layer, ...]
    buckets: tuple[Bucket, ...]

    def in_order(self, phase: str) -> list[tuple[int, Layer]]:
        """Number and layer, as they run."""
        numbered = list(enumerate(self.layers))
        return numbered if phase == "forward" else numbered[::-1]


Compute = Callable[[Maker, int, str, Layer], None]
"""Adds what a rank does for a layer in a phase."""


def plain(job: Maker, rank: int, phase: str, layer: Layer) -> None:
    """A layer that computes and nothing else."""
    if ns := layer.ns(phase):
        job.work(rank, phase, layer.path, ns)


def even(forward_ns: float, backward_ns: float, num_bytes: int, comm_ns: float, num_layers: int = 6) -> Model:
    """All layers alike; a bucket each."""
    layers = tuple(Layer(f"layers.{number}", forward_ns, backward_ns, num_bytes, comm_ns)
                   for number in range(num_layers))
    return Model(layers, tuple(Bucket(number, num_bytes, comm_ns) for number in reversed(range(num_layers))))


def drawn(random: np.random.Generator, num_layers: int, *, prefix: str = "layers", comm: float | None = None) -> Model:
    """Layers of any size, neighbours in one bucket or not.

    Args:
        random: Where it comes from.
        num_layers: Of the model.
        prefix: Of their paths.
        comm: How long all parameters take to move, as a part of what all layers compute; None: drawn.
    """
    forward = np.exp(random.uniform(np.log(200 * US), np.log(2000 * US))) * random.lognormal(0, 0.4, num_layers)
    backward = forward * random.uniform(1.5, 2.5)
    sizes = random.lognormal(0, 0.6, num_layers)
    ratio = np.exp(random.uniform(np.log(0.1), np.log(1.2))) if comm is None else comm
    moving = sizes / sizes.sum() * (forward + backward).sum() * ratio
    layers = tuple(Layer(f"{prefix}.{number}", float(forward[number]), float(backward[number]),
                         int(sizes[number] * (4 << 20)) // 4 * 4, float(moving[number]))
                   for number in range(num_layers))
    return Model(layers, _buckets(random, layers))


def _buckets(random: np.random.Generator, layers: tuple[Layer, ...]) -> tuple[Bucket, ...]:
    buckets, mine, often = [], [], random.uniform(0.2, 0.9)
    for number in reversed(range(len(layers))):
        mine.append(layers[number])
        if number == 0 or random.random() < often:
            buckets.append(Bucket(number, sum(one.num_bytes for one in mine), sum(one.comm_ns for one in mine)))
            mine = []
    return tuple(buckets)
