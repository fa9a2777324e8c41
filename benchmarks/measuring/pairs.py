"""What something costs in this process: ratios of steps with it to plain steps around, and rows of a table."""

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
    """Of a step."""

    cpu: float
    wall: float


def timed_step(step: Callable[[], object]) -> Seconds:
    """Does it and gives its seconds."""
    cpu, wall = time.process_time(), time.perf_counter()
    step()
    return Seconds(time.process_time() - cpu, time.perf_counter() - wall)


Block = Callable[[], list[Seconds]]
"""Some steps."""


@dataclass(slots=True)
class Pairs:
    """Ratios by what is on."""

    ratios: dict[str, list[Seconds]] = field(default_factory=dict)
    plain: list[Seconds] = field(default_factory=list)
    """Of plain blocks."""

    @property
    def plain_step(self) -> Seconds:
        """Median."""
        return _median(self.plain)

    def cpu(self, name: str) -> float:
        """Median ratio of processor times."""
        return _median(self.ratios[name]).cpu

    def rows(self) -> list[list[str]]:
        """Median (25 % .. 75 %) of each."""
        return [[name, *(_quartiles(values) for values in ([one.cpu for one in found], [one.wall for one in found]))]
                for name, found in self.ratios.items()]


def paired(blocks: Mapping[str, Block], plain: Block, rounds: int) -> Pairs:
    """Each round times each block between two plain ones. `PLAIN` is added: a plain block like any other."""
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
