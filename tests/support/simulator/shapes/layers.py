"""Layers in which ranks meet: tensor parallel ones, and experts."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from dataclasses import dataclass

from support.simulator.maker import US, Maker
from support.simulator.program import Key
from support.simulator.shapes.axis import Axis
from support.simulator.shapes.model import Layer

EVALUATE = "autograd::engine::evaluate_function: "
AROUND = {
    "slice": ((), ()),
    "operator": ((), (f"{EVALUATE}_AllReduceBackward",)),
    "missed": ((), ()),
    "add": (("aten::add",), (f"{EVALUATE}AddBackward0", "AddBackward0")),
    "redistribute": (("Redistribute",), (f"{EVALUATE}RedistributeBackward", "RedistributeBackward")),
    "deep": (("aten::linear", "Redistribute", "aten::view"),
             (f"{EVALUATE}RedistributeBackward", "RedistributeBackward", "aten::add", "aten::view")),
}
"""Manner of a wait: the slices around it in forward, and in backward. A slice of its own: `slice`, `operator` only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLayers:
    """Each layer adds up over the tensor-parallel group; with sequence parallelism it gathers and scatters."""

    axis: Axis
    manner: str = "slice"
    """A key of `AROUND`."""
    num_bytes: int = 1 << 20
    ns: float = 200 * US
    in_module: bool = True
    """True where the slice of the module holds its communication."""
    sequence: bool = False
    late_use: float = 0.0
    """How long the layer computes on before it needs the sum, as a part of what it computed."""

    def __call__(self, job: Maker, rank: int, phase: str, layer: Layer) -> None:
        with module(job, rank, phase, layer) if self.in_module else nullcontext():
            if self.sequence:
                self._wait(job, rank, phase, layer, self._call(job, rank, phase, layer, "all_gather"))
            job.work(rank, phase, layer.path, layer.ns(phase))
            key = self._call(job, rank, phase, layer, "reduce_scatter" if self.sequence else "all_reduce")
            if self.late_use:
                job.work(rank, phase, f"{layer.path}.norm", layer.ns(phase) * self.late_use)
            self._wait(job, rank, phase, layer, key)

    def _call(self, job: Maker, rank: int, phase: str, layer: Layer, op: str) -> Key:
        return job.call(rank, (phase, layer.path, op), op, self.axis.group(job.num_ranks, rank), self.num_bytes,
                        self.ns, phase=phase, where=layer.path if phase == "forward" else None)

    def _wait(self, job: Maker, rank: int, phase: str, layer: Layer, key: Key) -> None:
        with ExitStack() as stack:
            for name in AROUND[self.manner][phase == "backward"]:
                stack.enter_context(job.inside(
                    rank, name, where=layer.path if name.startswith(EVALUATE) else None))
            job.wait(rank, key, shown=self.manner in ("slice", "operator"), operator=self.manner == "operator")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLayers:
    """Tokens go to the ranks of their experts and back; how many a rank gets varies from step to step."""

    axis: Axis
    num_bytes: int = 1 << 20
    ns: float = 200 * US
    uneven: float = 0.1
    """Standard deviation of a rank's tokens, as a part."""
    shown: bool = True

    def __call__(self, job: Maker, rank: int, phase: str, layer: Layer) -> None:
        parts = [("router", 0.3, 0.0), ("experts", 0.7, self.uneven)]
        with module(job, rank, phase, layer):
            for number, (part, share, uneven) in enumerate(parts if phase == "forward" else parts[::-1]):
                if number:
                    self._exchange(job, rank, phase, layer, "there")
                tokens = max(1 + uneven * job.random(rank).standard_normal(), 0.2)
                job.work(rank, phase, f"{layer.path}.{part}", layer.ns(phase) * share * tokens)
            self._exchange(job, rank, phase, layer, "back")

    def _exchange(self, job: Maker, rank: int, phase: str, layer: Layer, way: str) -> None:
        key = job.call(rank, (phase, layer.path, way), "all_to_all", self.axis.group(job.num_ranks, rank),
                       self.num_bytes, self.ns, phase=phase, where=layer.path if phase == "forward" else None)
        job.wait(rank, key, shown=self.shown)


def module(job: Maker, rank: int, phase: str, layer: Layer) -> object:
    """The slice of a module, which is there in forward."""
    return job.inside(rank, f"{layer.path} [Layer]", "user_annotation") if phase == "forward" else nullcontext()
