"""Delays that are planted in a job."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

KINDS = {"whole": ("data", "forward", "backward", "optimizer", "host", "root"), "batch": ("forward", "backward")}
"""Kinds of plants that touch more than one kind of work, wherever it is: a part of a core; more samples, or longer
ones."""


@dataclass(frozen=True, slots=True)
class Plant:
    """A delay of one rank: what it names takes `factor` times as long, and `ns` more."""

    rank: int
    kind: str
    where: str | None = None
    ns: int = 0
    every: int = 1
    """In each so-manieth step."""
    offset: int | None = None
    """Which one of them, from 0; None: the last."""
    once: int | None = None
    """In this step only."""
    chance: float = 1.0
    """Of a step to have it, by a length that varies exponentially with mean `ns`, where this is below 1: a nap."""
    factor: float = 1.0

    def touches(self, kind: str, where: str | None) -> bool:
        """True for what takes longer."""
        return kind in KINDS[self.kind] if self.kind in KINDS else (kind, where) == (self.kind, self.where)

    def late_ns(self, step: int, ns: int, seed: int) -> int:
        """How much longer work of so long takes in a step."""
        if self.once is not None and step != self.once:
            return 0
        if step % self.every != (self.every - 1 if self.offset is None else self.offset % self.every):
            return 0
        if self.chance >= 1:
            return self.ns + round(ns * (self.factor - 1))
        random = np.random.default_rng([seed, 991, self.rank, step])
        return round(self.ns * random.exponential()) if random.random() < self.chance else 0
