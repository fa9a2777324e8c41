"""Finds the ends of arrows that have no other end or are in no slice, and those that need another id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distprof.arrays import Array, Flags, Integers
from distprof.merge.scan.scanned_columns import FLOW_START, NONE

REUSED = 3 << 30
"""First of the new ids of arrows whose id an earlier arrow of the rank had; other ids are below."""


class CompleteArrows:
    """Takes ends of arrows that are in a slice, sorted by arrow and time, and finds the complete arrows.

    A viewer binds an end to its slice. It reports an error for an end whose start is missing or whose slice was left
    out, and for a second start with the same id.
    """

    def __init__(self) -> None:
        self._key: tuple[int, ...] = ()
        """Key of the last end."""
        self._num_of_key = 0
        """Complete arrows with that key so far."""
        self._next_number = REUSED
        self._runs, self._number = False, NONE
        """Whether ends that follow belong to a complete arrow; and the new id of that arrow, or `NONE`."""
        self._alone: tuple[Any, ...] | None = None
        """A start that no other end has followed yet; None if there is none."""

    def add(self, keys: Sequence[Array], row: Integers, phase: Array) -> tuple[Integers, Flags, Integers]:
        """Takes the next ends.

        Args:
            keys: Columns that are equal for the ends of one arrow.
            row: Number of each end.
            phase: s, t or f, as codes.

        Returns:
            Rows that are decided: if the last row is a start, it is decided in the next call. For each, whether it
            belongs to a complete arrow, and the new id of an arrow whose id was in use before, else `NONE`.
        """
        columns = [*keys, row, phase]
        if self._alone is not None:
            columns = [np.concatenate(both) for both in zip(self._alone, columns, strict=True)]
        *keys, row, phase = columns
        kept, number = self._decide(self._begins(keys), phase == FLOW_START)
        is_open = len(row) > 0 and bool(phase[-1] == FLOW_START)
        self._alone = tuple(column[-1:].copy() for column in columns) if is_open else None
        count = len(row) - is_open
        return row[:count], kept[:count], number[:count]

    def end(self) -> Integers:
        """Returns the row of a start that nothing has followed."""
        return np.empty(0, np.int64) if self._alone is None else self._alone[-2]

    def _begins(self, keys: Sequence[Array]) -> Flags:
        """Returns whether each row is the first of its key."""
        begins = np.zeros(len(keys[0]), bool)
        if len(begins):
            begins[0] = tuple(int(key[0]) for key in keys) != self._key
            self._key = tuple(int(key[-1]) for key in keys)
        for key in keys:
            begins[1:] |= key[1:] != key[:-1]
        return begins

    def _decide(self, begins: Flags, is_start: Flags) -> tuple[Flags, Integers]:
        """Returns whether each row belongs to a complete arrow, and its new id."""
        kept, number = np.full(len(begins), self._runs), np.full(len(begins), self._number)
        first = np.flatnonzero(begins | is_start)
        if not len(first):
            return kept, number
        sizes = np.diff(np.append(first, len(begins)))
        whole = is_start[first] & (sizes > 1)
        before = self._before(whole, begins[first])
        is_second = whole & (before > 0)
        numbers = np.full(len(first), NONE)
        numbers[is_second] = self._next_number + np.arange(np.count_nonzero(is_second))
        self._next_number += int(np.count_nonzero(is_second))
        kept[first[0]:], number[first[0]:] = np.repeat(whole, sizes), np.repeat(numbers, sizes)
        self._runs, self._number, self._num_of_key = bool(whole[-1]), int(numbers[-1]), int(before[-1] + whole[-1])
        return kept, number

    def _before(self, whole: Flags, begins_key: Flags) -> Integers:
        """Returns the number of complete arrows with the same key before each arrow."""
        before: Integers = np.cumsum(whole) - whole
        latest = np.maximum.accumulate(np.where(begins_key, np.arange(len(whole)), -1))
        return before - np.where(latest < 0, -self._num_of_key, before[latest])
