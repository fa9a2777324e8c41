"""Simulates pairs of runs with a known difference."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from distprof.merge.difference.change import Change, changes
from distprof.merge.difference.samples import BETWEEN_RUNS, Noise, Samples
from distprof.merge.totals.step_time import middle
from support.simulator.engine import Simulation
from support.simulator.run_folder import Recorder
from support.simulator.shapes import SHAPES, Plant, programs


def simulated(folder: Path, seed: int, *, ranks: int = 4, steps: int = 15, slow: str = "layers.3", ns: int = 0,
              factor: float = 1.0, kinds: Sequence[str] = ("forward",), shape: str = "ddp") -> Path:
    """Simulates a run in which a module takes longer on all ranks: `factor` times as long, plus `ns`."""
    plants = tuple(Plant(rank, kind, slow, ns, factor=factor) for rank in range(ranks) for kind in kinds
                   if ns or factor != 1)
    run = Recorder().write(Simulation(programs(SHAPES[shape], ranks, steps, seed, plants=plants)), folder)
    for about in run.glob("rank*/rank.json"):
        about.write_text(json.dumps(json.loads(about.read_text()) | {"run_id": folder.name}))
    return run


def series(random: np.random.Generator, *, steps: int, alike: float, scatter: float, between: float,
           level: float = 1.0) -> Samples:
    """Returns step times of two ranks, autocorrelated (AR(1)) and with a random offset of the whole run.

    Args:
        random: The random generator.
        steps: Number of steps.
        alike: Correlation of consecutive steps.
        scatter: Standard deviation of steps, as a fraction of the step time.
        between: Standard deviation between runs, as a fraction of the step time.
        level: True step time in ms.
    """
    noise = np.zeros(steps)
    noise[0] = random.normal()
    for step in range(1, steps):
        noise[step] = alike * noise[step - 1] + np.sqrt(1 - alike ** 2) * random.normal()
    own = random.normal(size=(steps, 2)) * scatter / 4
    run = level * (1 + between * random.normal())
    return Samples(items=["step"], values=(run * (1 + scatter * noise[:, None] + own))[:, :, None] * 1e6)


def change_of(base: Sequence[Samples], new: Sequence[Samples], assumed: float = BETWEEN_RUNS) -> Change:
    """Returns the change of the step time."""
    noise = Noise(assumed=assumed, base_queued=[None] * len(base), new_queued=[None] * len(new))
    return changes(base, new, middle, noise)["step"]


def changed_ratio(pairs: int, *, seed: int = 0, runs: tuple[int, int] = (1, 1), level: float = 1.0,
                  **kinds: float) -> float:
    """Returns the fraction of pairs of sides that are judged as changed; the second side has true step time `level`."""
    random, found = np.random.default_rng(seed), 0
    for _ in range(pairs):
        sides = [[series(random, level=one, **kinds) for _ in range(number)]
                 for one, number in zip((1.0, level), runs, strict=True)]
        found += change_of(*sides).verdict == "changed"
    return found / pairs
