"""Families of jobs: structures that are drawn at random, of a size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from support.simulator.maker import US, Part
from support.simulator.shapes import pipelines
from support.simulator.shapes.axis import EVERYBODY, Axis
from support.simulator.shapes.ddp import Adversaries, Replicated
from support.simulator.shapes.layers import AROUND, ExpertLayers, TensorLayers
from support.simulator.shapes.model import Model, drawn
from support.simulator.shapes.parts import Closure, Data, Host, Update
from support.simulator.shapes.pipelines import Pipeline, StageGradients
from support.simulator.shapes.rooted import Rooted, Unrooted
from support.simulator.shapes.sharded import Sharded

DP: Mapping[str, Axis] = {"dp": EVERYBODY}


@dataclass(frozen=True, slots=True)
class Structure:
    """What the ranks of a job do in a step, and how they are divided."""

    parts: tuple[Part, ...]
    """Without data, optimizer and what else surrounds the model."""
    mesh: Mapping[str, Axis]
    updates: bool = False
    """True where the optimizer is among the parts."""
    comparable: bool = True
    """False where no two ranks run the same modules."""


@dataclass(frozen=True, slots=True)
class Draw:
    """Where structures come from."""

    random: np.random.Generator
    num_ranks: int

    def integer(self, least: int, most: int) -> int:
        return int(self.random.integers(least, most + 1))

    def one_of(self, *choices: Any) -> Any:
        return choices[self.integer(0, len(choices) - 1)]

    def size(self, *choices: int) -> int:
        """One that leaves at least two ranks a group."""
        return int(self.random.choice([one for one in choices if 2 * one <= self.num_ranks]))

    def chance(self, of: float) -> bool:
        return bool(self.random.random() < of)

    def model(self, most: int = 12, prefix: str = "layers", least: int = 3) -> Model:
        """Of jobs with many ranks smaller ones, so that they end."""
        most = min(most, 4 if self.num_ranks > 64 else 6 if self.num_ranks > 32 else most)
        return drawn(self.random, self.integer(min(least, most), most), prefix=prefix)

    def tensor(self, tp: int, *manners: str) -> TensorLayers:
        ns = float(np.exp(self.random.uniform(np.log(30 * US), np.log(400 * US))))
        return TensorLayers(axis=Axis(1, tp), manner=str(self.random.choice(manners or list(AROUND))), ns=ns,
                            in_module=self.chance(0.8), sequence=self.chance(0.3),
                            late_use=float(self.random.uniform(0.05, 0.3)) if self.chance(0.4) else 0.0)


def ddp(draw: Draw) -> Structure:
    return Structure((Replicated(model=draw.model()),), DP)


def accumulating(draw: Draw) -> Structure:
    """DDP with no_sync in all but the last microbatch."""
    return Structure((Replicated(model=draw.model(6), passes=draw.integer(2, 4)),), DP)


def closures(draw: Draw) -> Structure:
    """Another job, inside the step of an optimizer: LBFGS runs it several times, Lightning once."""
    inner, times = draw.one_of(ddp, ddp, fsdp, tp_dp)(draw), draw.integer(1, 4)
    return replace(inner, parts=(Closure(inner.parts, times, "LBFGS" if times > 1 else "Adam"),), updates=True)


def adversaries(draw: Draw) -> Structure:
    """DDP of two models with two optimizers."""
    two = [Replicated(model=draw.model(5, prefix)) for prefix in ("generator", "discriminator")]
    return Structure((Adversaries(generator=two[0], discriminator=two[1]),), DP, updates=True)


def _sharded(draw: Draw, **how: object) -> Sharded:
    return Sharded(model=draw.model(10), ahead=(draw.integer(0, 2), draw.integer(0, 2)), shown=draw.chance(0.7),
                   order=str(draw.one_of("issued", "reversed", "shuffled")), gathers_again=draw.chance(0.8),
                   in_hooks=draw.chance(0.5), **how)


def fsdp(draw: Draw) -> Structure:
    return Structure((_sharded(draw),), DP)


def hsdp(draw: Draw) -> Structure:
    """FSDP inside, all_reduce across."""
    shards = draw.size(2, 4, 8)
    return Structure((_sharded(draw, shards=Axis(1, shards), replicas=Axis(shards)),), DP)


def tp_dp(draw: Draw) -> Structure:
    tp = 8 if draw.num_ranks > 64 else draw.size(2, 4, 8)
    return Structure((Replicated(model=draw.model(8), replicas=Axis(tp), compute=draw.tensor(tp)),), _tp_mesh(tp))


def tp_fsdp(draw: Draw) -> Structure:
    tp = draw.size(2, 4, 8)
    return Structure((_sharded(draw, shards=Axis(tp), compute=draw.tensor(tp)),), _tp_mesh(tp))


def tp(draw: Draw) -> Structure:
    """Nothing but functional collectives, whose waits lie inside operators."""
    layers = draw.tensor(draw.num_ranks, "add", "redistribute", "deep")
    return Structure((Replicated(model=draw.model()._replace(buckets=()), compute=layers),),
                     {"tp": Axis(1, draw.num_ranks)})


def _tp_mesh(tp: int) -> Mapping[str, Axis]:
    return {"dp": Axis(tp), "tp": Axis(1, tp)}


def experts(draw: Draw) -> Structure:
    ep = draw.size(2, 4, 8)
    layers = ExpertLayers(axis=Axis(1, ep), uneven=float(draw.random.uniform(0.02, 0.2)), shown=draw.chance(0.7))
    return Structure((Replicated(model=draw.model(6), compute=layers),), {"dp": Axis(ep), "ep": Axis(1, ep)})


def _stages(draw: Draw, schedule: pipelines.Schedule, stages: int, chunks: int = 1, tp: int = 1) -> Structure:
    """A stage lies on neighbouring ranks."""
    models = tuple(draw.model(3 if tp == 1 else 2, f"stage.{number}.layers", least=1)
                   for number in range(stages * chunks))
    replicas = draw.num_ranks // stages // tp
    pipeline = Pipeline(axis=Axis(draw.num_ranks // stages, stages), chunks=models, schedule=schedule,
                        batches=stages * draw.integer(1, max(8 // stages // tp, 1)), shown=draw.chance(0.7),
                        **({"compute": draw.tensor(tp)} if tp > 1 else {}))
    mesh = {"pp": pipeline.axis, "dp": Axis(tp, replicas), **({"tp": Axis(1, tp)} if tp > 1 else {})}
    sums = (StageGradients(pipeline=pipeline, replicas=Axis(tp, replicas)),) if replicas > 1 else ()
    return Structure((pipeline, *sums), mesh, comparable=replicas * tp > 1)


def gpipe_dp(draw: Draw) -> Structure:
    return _stages(draw, pipelines.gpipe, draw.size(2, 4))


def pp_dp(draw: Draw) -> Structure:
    """1F1B."""
    return _stages(draw, pipelines.one_f_one_b, draw.size(2, 4))


def interleaved_dp(draw: Draw) -> Structure:
    return _stages(draw, pipelines.interleaved, draw.size(2, 4), chunks=2)


def pp_dp_tp(draw: Draw) -> Structure:
    return _stages(draw, pipelines.one_f_one_b, 2, tp=2)


def pp(draw: Draw) -> Structure:
    """Nothing but stages."""
    return _stages(draw, pipelines.one_f_one_b, draw.num_ranks)


def rooted(draw: Draw) -> Structure:
    """DDP between collectives with roots."""
    before, after = (str(draw.one_of(*ops)) for ops in (("broadcast", "scatter"), ("reduce", "gather")))
    roots = [Rooted(op=op, root=draw.integer(0, draw.num_ranks - 1), shown=draw.chance(0.7)) for op in (before, after)]
    return Structure((roots[0], Replicated(model=draw.model(8)), roots[1]), DP)


FAMILIES: dict[str, Callable[[Draw], Structure]] = {one.__name__: one for one in (
    ddp, accumulating, closures, adversaries, fsdp, hsdp, tp_dp, tp_fsdp, tp, experts, gpipe_dp, pp_dp, interleaved_dp,
    pp_dp_tp, pp, rooted)}


def surrounded(draw: Draw, structure: Structure) -> tuple[Part, ...]:
    """A step with data, optimizer, and now and then something else in which all ranks meet."""
    workers = draw.integer(1, 4) if draw.chance(0.4) else 0
    data = Data(float(draw.random.uniform(200 * US, 2000 * US)), workers)
    before = [Rooted(op="broadcast", shown=False)] if draw.chance(0.15) else []
    after: list[Part] = [] if structure.updates else [Update(float(draw.random.uniform(300 * US, 2000 * US)))]
    if draw.chance(0.2):
        after.insert(0, Unrooted(op="all_reduce", shown=draw.chance(0.7)))
    if draw.chance(0.1):
        after.append(Rooted(op=str(draw.one_of("reduce", "gather")), every=draw.integer(1, 3)))
    if draw.chance(0.1):
        after.append(Unrooted(every=draw.integer(1, 4)))
    return (data, *before, *structure.parts, *after, Host())
