"""Jobs as people run them, always the same: DDP with buckets, tensor x data parallel, FSDP, pipelines, roots."""

from __future__ import annotations

from support.simulator.maker import US, Maker, Shape, steps_of
from support.simulator.shapes.axis import Axis
from support.simulator.shapes.ddp import Replicated
from support.simulator.shapes.layers import TensorLayers
from support.simulator.shapes.model import Bucket, Layer, Model, even
from support.simulator.shapes.parts import Data, Update
from support.simulator.shapes.pipelines import Pipeline
from support.simulator.shapes.rooted import Rooted
from support.simulator.shapes.sharded import Sharded

LAYERS = 6
FORWARD_NS, BACKWARD_NS, BUCKET_NS = 1000 * US, 2000 * US, 1500 * US
EVEN = even(FORWARD_NS, BACKWARD_NS, 4 << 20, BUCKET_NS, LAYERS)
LAST = tuple(Bucket(0, 4 << 20, BUCKET_NS) for _ in range(2))
"""Two buckets that are full at the end of backward."""


def pipeline(job: Maker) -> None:
    """A stage a rank."""
    steps_of(Data(200 * US), _stages(job.num_ranks), Update())(job)


def _stage(number: int) -> Model:
    return Model((Layer(f"stage.{number}", FORWARD_NS, BACKWARD_NS, 0, 0),), ())


def _stages(stages: int) -> Pipeline:
    return Pipeline(axis=Axis(1, stages), chunks=tuple(map(_stage, range(stages))), pairs=True)


def _reduce_last(job: Maker, rank: int) -> None:
    """The ranks of a stage sum up their gradients."""
    nothing = Model((Layer("", 0, 0, 0, 0),), LAST)
    Replicated(model=nothing, replicas=Axis(2)).backward(job, rank)


def _rooted() -> Shape:
    layers = tuple(Layer(f"layers.{number}", FORWARD_NS, 0 if number else LAYERS * BACKWARD_NS, 0, 0)
                   for number in range(LAYERS))
    return steps_of(
        Data(), Rooted(op="broadcast", root_ns=0),
        Replicated(model=Model(layers, (Bucket(0, 24 << 20, 4 * BUCKET_NS),)), loss_ns=0),
        Rooted(op="reduce", num_bytes=4, ns=50 * US, root_ns=0), Update())


SHAPES: dict[str, Shape] = {
    "ddp": steps_of(Data(), Replicated(model=EVEN), Update()),
    "tp_dp": steps_of(
        Data(), Replicated(model=EVEN._replace(buckets=LAST), replicas=Axis(4), loss_ns=0,
                           compute=TensorLayers(axis=Axis(1, 4), in_module=False)), Update()),
    "fsdp": steps_of(Data(), Sharded(model=even(FORWARD_NS, BACKWARD_NS, 2 << 20, 700 * US, LAYERS)), Update()),
    "pipeline": pipeline,
    "pp_dp": steps_of(Data(200 * US), _stages(2), _reduce_last, Update()),
    "rooted": _rooted(),
}
