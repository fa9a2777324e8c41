"""Clocks of many ranks as arrays: their times on the common clock, and by how much these may be wrong."""

from __future__ import annotations

import numpy as np

from distprof.arrays import Array, Integers
from distprof.contract.rank_summary import NO_INTEGER
from distprof.merge.clock.model import UNSHIFTED, Clock


class RankClocks:
    """Lines of some ranks, which are told by their index."""

    def __init__(self, clock: Clock, ranks: Integers) -> None:
        self._clock = clock
        lines = [clock.ranks[rank].line if rank in clock.ranks else UNSHIFTED for rank in ranks.tolist()]
        self._offset, self._reference = (np.array([getattr(line, name) for line in lines], np.int64)
                                         for name in ("offset_ns", "reference_ns"))
        self._slope = np.array([line.drift_ppm * 1e-6 for line in lines])
        self._unsure = dict[int, int | None]()

    def common_ns(self, index: Array, own_ns: Integers) -> Integers:
        """Times of ranks, by index and of a shape that goes with `own_ns`, on the common clock."""
        drifted = np.rint((own_ns - self._reference[index]) * self._slope[index]).astype(np.int64)
        return np.where(own_ns == NO_INTEGER, NO_INTEGER, own_ns + self._offset[index] + drifted)

    def uncertainty_ns(self, numbers: Array, members: Integers) -> Integers:
        """By how much two times of each meeting may be wrong against each other; below 0 where it is not known.

        Args:
            numbers: Of the meetings that are asked for.
            members: Ranks of each; shape (numbers, members).
        """
        if self._clock.compares_exactly:
            return np.zeros(len(numbers), np.int64)
        for row, number in enumerate(numbers.tolist()):
            if number not in self._unsure:
                self._unsure[number] = self._clock.pair_uncertainty_ns(members[row].tolist())
        found = [self._unsure[number] for number in numbers.tolist()]
        return np.array([-1 if one is None else one for one in found], np.int64)
