"""Finds which ends of arrows lack their other end or a slice to lie in, and which need another id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distprof.arrays import Array, Flags, Integers
from distprof.merge.scan.scanned_columns import FLOW_START, NONE

REUSED = 3 << 30
"""Numbers of arrows whose id an earlier arrow of the rank had; other ids are below."""


class CompleteArrows:
    """Takes ends of arrows that lie in a slice, by arrow and time, and finds those that lead somewhere.

    A viewer binds an end to the slice around it; an end whose start is not there, or whose slice was left out, it drops
    with an error, and a second start of one id too.
    """

    def __init__(self) -> None:
        self._key: tuple[int, ...] = ()
        """Of the last end."""
        self._num_of_key = 0
        """Arrows of that key that lead somewhere."""
        self._next_number = REUSED
        self._runs, self._number = False, NONE
        """Whether ends that follow belong to an arrow that leads somewhere; and the number it needs."""
        self._alone: tuple[Any, ...] | None = None
        """A start behind which nothing has come yet."""

    def add(self, keys: Sequence[Array], row: Integers, phase: Array) -> tuple[Integers, Flags, Integers]:
        """Takes in the next ends.

        Args:
            keys: Columns that are equal for the ends of one arrow.
            row: Number of each end.
            phase: s, t or f, as codes.

        Returns:
            Rows that are decided: not the last one where that is a start, but that of the call before; bool a row,
            False for what hangs in the air; int64 a row, a number for arrows whose id was in use before, else `NONE`.
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
        """The rows that nothing has come behind."""
        return np.empty(0, np.int64) if self._alone is None else self._alone[-2]

    def _begins(self, keys: Sequence[Array]) -> Flags:
        """bool a row: the first one of its key."""
        begins = np.zeros(len(keys[0]), bool)
        if len(begins):
            begins[0] = tuple(int(key[0]) for key in keys) != self._key
            self._key = tuple(int(key[-1]) for key in keys)
        for key in keys:
            begins[1:] |= key[1:] != key[:-1]
        return begins

    def _decide(self, begins: Flags, is_start: Flags) -> tuple[Flags, Integers]:
        """Whether each row leads somewhere, and its number."""
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
        """How many arrows of the same key lead somewhere before each one."""
        before: Integers = np.cumsum(whole) - whole
        latest = np.maximum.accumulate(np.where(begins_key, np.arange(len(whole)), -1))
        return before - np.where(latest < 0, -self._num_of_key, before[latest])
