"""Measures overheads in this process: ratios of steps with something enabled to plain steps before and after."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

HEAD = ("over plain", "processor time", "elapsed time")
PLAIN = "plain (noise)"


@dataclass(frozen=True, slots=True)
class Seconds:
    """Processor time and wall time of a step."""

    cpu: float
    wall: float


def timed_step(step: Callable[[], object]) -> Seconds:
    """Runs a step and returns its times."""
    cpu, wall = time.process_time(), time.perf_counter()
    step()
    return Seconds(time.process_time() - cpu, time.perf_counter() - wall)


Block = Callable[[], list[Seconds]]
"""Runs some steps and returns their times."""


@dataclass(slots=True)
class Pairs:
    """Measured ratios."""

    ratios: dict[str, list[Seconds]] = field(default_factory=dict)
    """Name -> one ratio to plain blocks per round."""
    plain: list[Seconds] = field(default_factory=list)
    """Medians of plain blocks."""

    @property
    def plain_step(self) -> Seconds:
        """Median plain step."""
        return _median(self.plain)

    def cpu(self, name: str) -> float:
        """Returns the median ratio of processor times."""
        return _median(self.ratios[name]).cpu

    def rows(self) -> list[list[str]]:
        """Returns a row with median (25 % .. 75 %) for each name."""
        return [[name, *(_quartiles(values) for values in ([one.cpu for one in found], [one.wall for one in found]))]
                for name, found in self.ratios.items()]


def paired(blocks: Mapping[str, Block], plain: Block, rounds: int) -> Pairs:
    """Measures each block between two plain ones, in each round; also a plain block, with the name `PLAIN`."""
    found = Pairs()
    plain()
    for _ in range(rounds):
        for name, block in ({PLAIN: plain} | dict(blocks)).items():
            before, timed, after = (_median(one()) for one in (plain, block, plain))
            found.plain += [before, after]
            found.ratios.setdefault(name, []).append(Seconds(2 * timed.cpu / (before.cpu + after.cpu),
                                                             2 * timed.wall / (before.wall + after.wall)))
    return found


def _median(found: list[Seconds]) -> Seconds:
    return Seconds(statistics.median(one.cpu for one in found), statistics.median(one.wall for one in found))


def _quartiles(values: list[float]) -> str:
    low, middle, high = np.percentile(values, (25, 50, 75))
    return f"{middle:.3f} ({low:.3f} .. {high:.3f})"
