"""Axes of a mesh of ranks."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from support.simulator.program import Group


class Axis(NamedTuple):
    """Ranks that differ in one coordinate."""

    stride: int = 1
    size: int | None = None
    """None: all that is left."""

    def position(self, num_ranks: int, rank: int) -> int:
        """Of a rank in its group."""
        return rank // self.stride % (self.size or num_ranks // self.stride)

    def group(self, num_ranks: int, rank: int) -> Group:
        """The group of a rank."""
        return _group(self.stride, self.size or num_ranks // self.stride, rank - self.stride * self.position(
            num_ranks, rank))


EVERYBODY = Axis()


@cache
def _group(stride: int, size: int, first: int) -> Group:
    return tuple(range(first, first + stride * size, stride))
