"""What the time pass says of ranks: parts of their steps, and modules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from distprof.merge.blame.causes import MOST_OF
from distprof.merge.blame.summarised.arrays import Peers
from distprof.merge.run.summaries.summaries import Joined

PARTS = {"data": "before_forward_ns", "optimizer": "optimizer_ns"}
SIDES = {"forward": "fwd_time_ns", "backward": "bwd_time_ns", "recompute": "recompute_time_ns"}
"""Times of modules hold those of what lies in them, and waits."""


class Longer(NamedTuple):
    """What a rank spends more time on than its median peer, in ns a step."""

    kind: str
    where: str | None
    spent: float
    of_peers: float

    @property
    def by_ns(self) -> float:
        return self.spent - self.of_peers


class Timed:
    """Steps and modules of the time pass.

    Args:
        modules: `MODULES` of all ranks.
        steps: `STEPS` of them.
        ranks: Their numbers, ascending.
    """

    def __init__(self, modules: Joined, steps: pl.DataFrame, ranks: Any) -> None:
        self._ranks, self._modules = ranks, modules
        timed = steps.filter(pl.col("pass") == "time").group_by("rank").agg(
            pl.col(column).cast(pl.Float64).mean() for column in PARTS.values())
        every = pl.DataFrame({"rank": ranks}).join(timed, on="rank", how="left", maintain_order="left")
        self._parts = {kind: every[column].fill_null(np.nan).to_numpy() for kind, column in PARTS.items()}
        self._of_peers: dict[int, dict[str, Any]] = {}

    def longer(self, peers: Peers, row: int) -> Iterator[Longer]:
        """Parts and modules in which a rank is slower than its peers.

        Args:
            peers: With the rank.
            row: Its place among them.
        """
        for kind, means in self._parts.items():
            mine, others = means[peers.rows[row]], np.delete(means[peers.rows], row)
            if not np.isnan(mine) and not np.isnan(others).all():
                yield Longer(kind, None, float(mine), float(np.nanmedian(others)))
        for kind, times in self._modules_of(peers).items():
            mine, others = times[row], np.delete(times, row, axis=0)
            known = ~np.isnan(mine) & ~np.isnan(others).all(axis=0)
            if (mine[known] > 0).any():
                usual = np.zeros(len(mine))
                usual[known] = np.nanmedian(others[:, known], axis=0)
                yield from self._deepest(kind, np.where(known, mine, 0), usual)

    def _deepest(self, kind: str, mine: Any, usual: Any) -> Iterator[Longer]:
        """The innermost module that holds most of the largest excess."""
        names, by = self._modules.texts["module_path"], mine - usual
        if (most := float(by.max())) <= 0:
            return
        chosen = max((number for number in range(len(by)) if by[number] >= MOST_OF * most),
                     key=lambda number: (_depth(names[number]), by[number]))
        yield Longer(kind, names[chosen], float(mine[chosen]), float(usual[chosen]))

    def _modules_of(self, peers: Peers) -> Mapping[str, Any]:
        """Times by side; shape (peers, modules)."""
        key = int(peers.rows[0])
        if key not in self._of_peers:
            rank, path = self._modules.rank, self._modules.columns["module_path"]
            numbers = self._ranks[peers.rows]
            held = np.flatnonzero(np.isin(rank, numbers) & (path >= 0))
            shape = len(numbers), len(self._modules.texts["module_path"])
            place = np.searchsorted(numbers, rank[held]), path[held]
            found = {}
            for kind, column in SIDES.items():
                values = self._modules.columns[column][held]
                times = np.full(shape, np.nan)
                times[place] = values
                if np.nansum(times) > 0:
                    found[kind] = times
            self._of_peers = {key: found}  # of one set of peers at a time
        return self._of_peers[key]



def _depth(path: str) -> int:
    return path.count(".") + bool(path)
