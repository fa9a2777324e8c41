"""Jobs that are drawn at random, with delays of which the cost is known, recorded well or badly."""

from __future__ import annotations

import gc
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from support.simulator.engine import Simulation
from support.simulator.families import FAMILIES, Draw, Structure, surrounded
from support.simulator.maker import JITTERS, Shape, programs, steps_of
from support.simulator.plant import KINDS, Plant
from support.simulator.program import Fetch, StepEnd, Work
from support.simulator.run_folder import Recorder

ALWAYS, EVERY, ONCE, NAPS = "always", "every", "once", "naps"


@contextmanager
def without_collection() -> Iterator[None]:
    """Nothing here is garbage, of which the collector would convince itself again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A job, what was planted in it, and how it is recorded."""

    seed: int
    family: str
    num_ranks: int
    num_steps: int
    shape: Shape
    comparable: bool
    """False where no two ranks run the same modules."""
    jitter: float
    jitter_kind: str
    lanes: int
    slowdown: float
    recorder: Recorder
    slower_ratio: float = 0.0
    """By how much longer work takes in steps with a timeline, as a part."""
    plants: tuple[Plant, ...] = ()
    background: tuple[Plant, ...] = ()
    """Naps of all ranks, which nobody answers for; they stay."""
    _run: dict[tuple[Plant, ...], Simulation] = field(default_factory=dict, compare=False, repr=False)

    @property
    def planted(self) -> Simulation:
        """The job with all delays."""
        return self.simulated(self.plants)

    def without(self, plant: Plant) -> Simulation:
        """The job without one."""
        return self.simulated(tuple(one for one in self.plants if one != plant))

    def without_all(self) -> Simulation:
        """The job without any."""
        return self.simulated(())

    def simulated(self, plants: tuple[Plant, ...]) -> Simulation:
        """The job with other delays; it is run once."""
        if plants not in self._run:
            with without_collection():
                made = programs(self.shape, self.num_ranks, self.num_steps, self.seed, jitter=self.jitter,
                                jitter_kind=self.jitter_kind, plants=(*plants, *self.background),
                                slow_steps=self.recorder.num_traced or 0, slower_ratio=self.slower_ratio)
                self._run[plants] = Simulation(made, lanes=self.lanes, slowdown=self.slowdown)
        return self._run[plants]

    def gain_ns(self, plant: Plant) -> float:
        """How much shorter a step would be without a delay: mean of all steps but the first, and of the ranks that
        meet the late one, directly or not."""
        late, without = self.planted, self.without(plant)
        return float(np.mean([late.step_ns(rank) - without.step_ns(rank) for rank in late.ranks_with(plant.rank)]))

    def write(self, folder: Path) -> Path:
        """The run directory of the job with all delays."""
        late = self.planted
        with without_collection():
            return self.recorder.write(late, folder)

    def __str__(self) -> str:
        late = ", ".join(f"{one.kind} of {one.rank}" for one in self.plants)
        return f"{self.seed}: {self.family}, {self.num_ranks} ranks, {self.num_steps} steps; {late or 'balanced'}"


def random_case(seed: int, ranks: tuple[int, int] = (8, 64), family: str | None = None) -> Case:
    """A case; the same seed gives the same one.

    Args:
        seed: Of all that is drawn.
        ranks: Least and most; a power of two.
        family: A key of `FAMILIES`; None: drawn.
    """
    random = np.random.default_rng([seed, 5])
    num_ranks = 2 ** int(random.integers(round(math.log2(ranks[0])), round(math.log2(ranks[1])) + 1))
    family = family or str(random.choice(list(FAMILIES)))
    draw = Draw(random, min(num_ranks, 8) if family in ("pp", "tp") else num_ranks)
    structure = FAMILIES[family](draw)
    balanced = Case(
        seed=seed, family=family, num_ranks=draw.num_ranks, num_steps=draw.integer(9, 20),
        shape=steps_of(*surrounded(draw, structure)), comparable=structure.comparable,
        jitter=float(np.exp(random.uniform(np.log(0.003), np.log(0.05)))),
        jitter_kind=str(random.choice(list(JITTERS))), lanes=draw.integer(1, 2),
        slowdown=float(random.uniform(0.1, 0.3)) if draw.chance(0.4) else 0.0, recorder=_recorder(draw, structure))
    two_steps = replace(balanced, num_steps=2, _run={}).without_all()
    background = _naps(draw, two_steps) if draw.chance(0.15) else ()
    plants = [_plant(draw, two_steps, balanced.num_steps) for _ in range(int(random.choice(3, p=[0.2, 0.5, 0.3])))]
    return replace(balanced, plants=tuple(dict.fromkeys(plants)), background=background, _run={})


def _recorder(draw: Draw, structure: Structure) -> Recorder:
    ranks = range(draw.num_ranks)
    error_ns = int(draw.random.choice([0, 0, 20_000, 200_000]))
    errors = {rank: int(draw.random.uniform(-error_ns, error_ns)) for rank in ranks if error_ns}
    off = {rank: int(draw.random.uniform(-1e9, 1e9)) for rank in ranks[1:]} if draw.chance(0.1) else {}
    one = draw.integer(0, draw.num_ranks - 1)
    return Recorder(
        mesh=structure.mesh, clock_error_ns={} if off else errors, clock_off_ns=off, seed=draw.integer(0, 1 << 30),
        late_end_ns=int(draw.random.choice([0, 0, 0, 50_000, 1_000_000, 10_000_000])),
        records_waits=draw.chance(0.7), hides_waits=_some(draw, one, 0.1, 0.1),
        misses_waits=_some(draw, one, 0.1, 0.0))


def _some(draw: Draw, one: int, chance_of_one: float, chance_of_all: float) -> frozenset[int]:
    drawn = draw.random.random()
    if drawn < chance_of_one:
        return frozenset({one})
    return frozenset(range(draw.num_ranks)) if drawn < chance_of_one + chance_of_all else frozenset()


def _naps(draw: Draw, job: Simulation) -> tuple[Plant, ...]:
    ns = int(job.step_ns(0) * draw.random.uniform(0.01, 0.1))
    return tuple(Plant(rank, "host", None, ns, chance=0.05) for rank in range(draw.num_ranks))


def _plant(draw: Draw, job: Simulation, num_steps: int) -> Plant:
    """Of a rank that does what the plant names; `job` has two steps."""
    roots = [rank for rank in range(draw.num_ranks) if any(kind == "root" for kind, _ in _places(job, rank))]
    kind = str(draw.one_of(*KINDS["whole"][:-1], *KINDS, *(["root"] if roots else [])))
    rank = int(draw.random.choice(roots)) if kind == "root" else draw.integer(0, draw.num_ranks - 1)
    when = str(draw.random.choice([ALWAYS, EVERY, ONCE, NAPS], p=[0.7, 0.12, 0.08, 0.1]))
    if kind in KINDS:
        return _timed(draw, Plant(rank, kind, factor=1 + float(draw.random.uniform(0.1, 0.9))),
                      ALWAYS if when == NAPS else when, num_steps)
    places = _places(job, rank)
    kind, where = draw.one_of(*[place for place in places if place[0] == kind] or [("host", None)])
    share = float(np.exp(draw.random.uniform(np.log(0.005), np.log(0.5))))
    ns = round(share * job.step_ns(rank) / max(places[kind, where], 1))
    return _timed(draw, Plant(rank, kind, where, ns), when, num_steps)


def _timed(draw: Draw, plant: Plant, when: str, num_steps: int) -> Plant:
    """Rarer ones are longer."""
    if when == EVERY:
        every = draw.integer(2, 5)
        return replace(plant, every=every, offset=draw.integer(0, every - 1), ns=plant.ns * every)
    if when == ONCE:
        return replace(plant, once=draw.integer(1, num_steps - 1), ns=plant.ns * 5)
    return replace(plant, chance=float(draw.random.uniform(0.1, 0.4)), ns=plant.ns * 4) if when == NAPS else plant


def _places(job: Simulation, rank: int) -> Counter[tuple[str, str | None]]:
    """What a rank does in the first step, and how often."""
    places: Counter[tuple[str, str | None]] = Counter()
    for one in _first_step(job.programs[rank]):
        if isinstance(one, Work):
            places[one.kind, one.where] += 1
        elif isinstance(one, Fetch):
            places["data", None] += 1
    return places


def _first_step(program: Sequence[object]) -> Sequence[object]:
    return program[:next(number for number, one in enumerate(program) if isinstance(one, StepEnd))]
