"""Dependencies between calls of a rank: pairs of places, of which the first needs the second."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from distprof.arrays import Integers


class EdgeList:
    """Collects pairs one by one."""

    def __init__(self) -> None:
        self._later, self._earlier = array("q"), array("q")

    def add(self, later: int, earlier: int) -> None:
        """Notes that `later` needs `earlier`."""
        self._later.append(later)
        self._earlier.append(earlier)

    def arrays(self) -> tuple[Integers, Integers]:
        """Both sides."""
        return np.array(self._later, np.int64), np.array(self._earlier, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edges:
    """Dependencies by place."""

    begin: Integers
    """Where those of a place begin in `earlier`; one value more than places."""
    earlier: Integers
    """Places that are needed, ascending, each once."""

    def of(self, place: int) -> list[int]:
        """What a place needs."""
        found: list[int] = self.earlier[self.begin[place]:self.begin[place + 1]].tolist()
        return found


def edges(num_places: int, parts: Iterable[tuple[Integers, Integers]]) -> Edges:
    """Puts dependencies together: only on what comes before, so that nothing can need itself by way of others."""
    later, earlier = (np.concatenate([np.empty(0, np.int64), *side]) for side in zip(*parts, strict=True))
    keep = (earlier >= 0) & (earlier < later)
    keys = np.unique(later[keep] * num_places + earlier[keep])
    later, earlier = keys // max(num_places, 1), keys % max(num_places, 1)
    return Edges(begin=np.searchsorted(later, np.arange(num_places + 1)), earlier=earlier)
