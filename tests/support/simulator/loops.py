"""Training loops as people write them: accumulated gradients, work of the script between any two parts, few ranks.

The first steps have a timeline and are slower; later ones are recorded without one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from support.simulator.cases import Case
from support.simulator.families import DP, Draw
from support.simulator.maker import JITTERS, US, Maker, programs, steps_of
from support.simulator.plant import Plant
from support.simulator.run_folder import Recorder
from support.simulator.shapes.ddp import Replicated

GAPS = ("data", "forward", "backward", "optimizer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """One step of a rank."""

    model: Replicated
    passes: int
    """Micro-batches; each loads data."""
    zero_grad: str
    """`first`, `before forward`, or `last`."""
    gap_ns: float
    """What the script does itself between two parts."""

    def __call__(self, job: Maker, rank: int) -> None:
        parts = [*("data", "forward", "backward") * self.passes, "optimizer"]
        self._clear(job, rank, "first")
        for number, (part, following) in enumerate(pairwise([*parts, "data"])):
            self._do(job, rank, part, is_last=number == len(parts) - 2)
            job.work(rank, "host", f"between {part} and {following}", self.gap_ns)
            if number == 0:
                self._clear(job, rank, "before forward")
                job.work(rank, "host", "between data and forward", self.gap_ns)
        self._clear(job, rank, "last")

    def _do(self, job: Maker, rank: int, part: str, *, is_last: bool) -> None:
        if part == "forward":
            self.model.forward(job, rank)
        elif part == "backward":
            self.model.backward(job, rank, synced=is_last)
        else:
            job.work(rank, part, None, 400 * US)

    def _clear(self, job: Maker, rank: int, place: str) -> None:
        if place == self.zero_grad:
            job.work(rank, "zero_grad", None, 60 * US)


def random_loop(seed: int) -> Case:
    """A job; the same seed gives the same one."""
    random = np.random.default_rng([seed, 11])
    draw = Draw(random, int(random.choice([2, 2, 3, 4, 4, 8])))
    loop = Loop(model=Replicated(model=draw.model(8), loss_ns=0), passes=int(random.choice([1, 1, 2, 4])),
                zero_grad=str(draw.one_of("first", "before forward", "last")),
                gap_ns=float(random.uniform(20 * US, 200 * US)))
    traced = draw.integer(5, 7)
    case = Case(
        seed=seed, family="loop", num_ranks=draw.num_ranks, num_steps=traced + draw.integer(20, 32),
        shape=steps_of(loop), comparable=True, jitter=float(np.exp(random.uniform(np.log(0.003), np.log(0.04)))),
        jitter_kind=str(random.choice(list(JITTERS))), lanes=2,
        slowdown=float(random.uniform(0.1, 0.3)) if draw.chance(0.3) else 0.0,
        recorder=Recorder(mesh=DP, seed=seed, num_traced=traced), slower_ratio=float(random.uniform(0, 0.5)))
    plants = _plants(draw, case, loop)
    return replace(case, plants=plants, _run={})


def _plants(draw: Draw, case: Case, loop: Loop) -> tuple[Plant, ...]:
    """None, one, or two of one rank that take as long."""
    number = int(draw.random.choice(3, p=[0.15, 0.65, 0.2]))
    rank = draw.integer(0, case.num_ranks - 1)
    step_ns = replace(case, num_steps=3, _run={}).without_all().step_ns(rank)
    share = float(np.exp(draw.random.uniform(np.log(0.02), np.log(1.0))))
    places = _places(loop, rank, case.num_ranks)
    chosen = [places[int(place)] for place in draw.random.permutation(len(places))[:number]]
    return tuple(Plant(rank, kind, where, round(share * step_ns / often / number)) for (kind, where), often in chosen)


def _places(loop: Loop, rank: int, num_ranks: int) -> list[tuple[tuple[str, str | None], int]]:
    """What a step consists of, and how often; kinds equally often, whatever the number of layers."""
    work = [(one.kind, one.where) for one in programs(steps_of(loop), num_ranks, 1, 0)[rank] if hasattr(one, "where")
            and getattr(one, "kind", None) not in (None, "zero_grad")]
    kinds = {kind for kind, _ in work}
    places = {place: work.count(place) for place in work}
    many = max(sum(kind == one for kind, _ in places) for one in kinds)
    return [entry for kind in sorted(kinds) for own in [[one for one in sorted(places.items(), key=str)
                                                         if one[0][0] == kind]] for entry in own * (many // len(own))]
