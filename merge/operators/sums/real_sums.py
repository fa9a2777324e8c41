"""Sums of real numbers, group by group, which come rank by rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import fsum
from typing import Any

import numpy as np

from distprof.merge.operators.one_key import sorted_places


def sums_of(numbers: Any, values: Any, num_groups: int) -> Any:
    """Of one rank, rounded once. Polars adds in one of several orders, whichever its threads come to.

    Args:
        numbers: The group of each row; every group has one.
        values: What is added; 0 where it is not known.
        num_groups: How many there are.
    """
    if not values.any():
        return np.zeros(num_groups)
    order = sorted_places(numbers)
    ends, ordered = np.cumsum(np.bincount(numbers, minlength=num_groups)).tolist(), values[order].tolist()
    return np.array([fsum(ordered[start:end]) for start, end in pairwise((0, *ends))])


class RealSums:
    """Adds ranks up in their order, with what rounding leaves out: of many ranks it would show."""

    def __init__(self, names: Sequence[str]) -> None:
        self._sums = {name: np.zeros(0) for name in names}
        self._lost = {name: np.zeros(0) for name in names}

    def grow(self, num_groups: int) -> None:
        """Makes room for groups that were not there before."""
        for held in (self._sums, self._lost):
            for name, values in held.items():
                held[name] = np.concatenate((values, np.zeros(num_groups - len(values))))

    def add(self, groups: Any, columns: Mapping[str, Any]) -> None:
        """Takes the sums of a rank.

        Args:
            groups: The places of its groups, each once.
            columns: A number for each of these.
        """
        for name, sums in self._sums.items():
            before, more = sums[groups], columns[name]
            after = before + more
            part = after - before
            self._lost[name][groups] += (before - (after - part)) + (more - part)
            sums[groups] = after

    def done(self) -> Mapping[str, Any]:
        """A number for each group."""
        return {name: sums + self._lost[name] for name, sums in self._sums.items()}
