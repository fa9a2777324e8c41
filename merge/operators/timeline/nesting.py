"""Finds the slice that each slice of a thread lies in, and sums over what lies in a slice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from distprof.arrays import Flags, Integers
from distprof.merge.operators.one_key import sorted_places


class Nesting:
    """Nests slices in their parents.

    A slice lies in the last one of its thread that began before it, or at the same time and is longer, and is not over,
    as torch.profiler nests them. A slice that ends after another one does not lie in it, and ends it.
    """

    def __init__(self, thread: Integers, start: Integers, end: Integers, held: Flags) -> None:
        """Nests slices that are sorted by thread, start, and longest first.

        Args:
            thread: A number per slice.
            start: In ns.
            end: In ns.
            held: False for slices that take no part: they lie in none, and none lies in them.
        """
        self.parent = np.full(len(thread), -1, np.int64)
        """Row of the slice around each one, -1 for none."""
        rows = np.flatnonzero(held)
        inside = _parents(thread[rows], start[rows], end[rows])
        self.parent[rows] = np.where(inside >= 0, rows[inside], -1)
        self._levels = list(_levels(self.parent))

    def downwards(self) -> Iterator[tuple[Any, Any]]:
        """Yields rows level by level, outermost first, and their parents."""
        for rows in self._levels:
            yield rows, self.parent[rows]

    def with_inner(self, values: Integers) -> Integers:
        """Returns the sum of each slice's value and those of all that lie in it."""
        found = values.copy()
        for rows in reversed(self._levels[1:]):
            np.add.at(found, self.parent[rows], found[rows])
        return found

    def lifted(self, values: Integers, rows: Flags) -> Integers:
        """Returns the values, with those of `rows` added to the slices around them."""
        found = values.copy()
        for level in reversed(self._levels[1:]):
            some = level[rows[level]]
            np.add.at(found, self.parent[some], found[some])
        return found

    def without_inner(self, values: Integers) -> Integers:
        """Returns each slice's value minus those of the slices that lie directly in it."""
        inside = np.flatnonzero(self.parent >= 0)
        found = values.copy()
        np.subtract.at(found, self.parent[inside], values[inside])
        return found


def _levels(parent: Integers) -> Iterator[Any]:
    """Yields rows whose parents are all in earlier levels."""
    level = np.full(len(parent), -1, np.int64)
    rows = np.flatnonzero(parent < 0)
    number = 0
    while len(rows):
        yield rows
        level[rows] = number
        number += 1
        waiting = np.flatnonzero(level < 0)
        rows = waiting[level[parent[waiting]] == number - 1]


def _parents(thread: Integers, start: Integers, end: Integers) -> Integers:
    if not len(start):
        return np.empty(0, np.int64)
    span = int(end.max()) - int(start.min()) + 1
    _, number = np.unique(thread, return_inverse=True)
    if number[-1] and (int(number[-1]) + 1) * span >= 1 << 62:  # if times are years apart: thread by thread
        parent = np.full(len(start), -1, np.int64)
        for one in range(int(number[-1]) + 1):
            rows = np.flatnonzero(number == one)
            inside = _parents(np.zeros(len(rows), np.int64), start[rows], end[rows])
            parent[rows] = np.where(inside >= 0, rows[inside], -1)
        return parent
    shift = number * span - start.min() if number[-1] else 0
    parent = _if_nested(start + shift, end + shift)
    torn = np.flatnonzero((parent >= 0) & (end > end[parent]))
    for one in np.unique(number[torn]):
        first, behind = np.searchsorted(number, (one, one + 1))
        inside = _one_by_one(start[first:behind].tolist(), end[first:behind].tolist())
        parent[first:behind] = np.where(inside >= 0, inside + first, -1)
    return parent


def _if_nested(start: Integers, end: Integers) -> Integers:
    """Returns parents if slices nest properly; a slice that does not gets a parent that ends before it does."""
    rows = np.arange(len(start))
    depth = rows - np.searchsorted(np.sort(end), start, "right")
    is_empty = end == start
    if is_empty.any():
        # an empty slice ends where it begins, so later ones that begin at the same time are not over before it
        empty = np.concatenate(([0], np.cumsum(is_empty)))
        depth += empty[np.searchsorted(start, start, "right")] - empty[rows]
    parent, above = np.full(len(start), -1, np.int64), np.empty(0, np.int64)
    for level in by_number(depth):
        if len(above):
            parent[level] = above[np.searchsorted(above, level) - 1]
        above = level
    return parent


def by_number(numbers: Integers) -> list[Integers]:
    """Returns the rows with each number from 0 on, ascending."""
    if not len(numbers):
        return []
    most = int(numbers.max())
    return np.split(sorted_places(numbers), np.cumsum(np.bincount(numbers, minlength=most + 1))[:-1])


def in_order(thread: Integers, start: Integers, duration: Integers) -> Integers:
    """Returns the order of slices by thread, start, and longest first; traces have nearly all in order of time."""
    order = np.argsort(start, kind="stable")
    order = order[sorted_places(thread[order])]
    same = np.flatnonzero((np.diff(thread[order]) == 0) & (np.diff(start[order]) == 0))
    if len(same):
        places = np.unique(np.concatenate((same, same + 1)))
        rows = order[places]
        order[places] = rows[np.lexsort((-duration[rows], start[rows], thread[rows]))]
    return order


def _one_by_one(start: list[int], end: list[int]) -> Integers:
    found, stack = np.full(len(start), -1, np.int64), list[int]()
    for row, (begins, ends) in enumerate(zip(start, end, strict=True)):
        while stack and (begins >= end[stack[-1]] or ends > end[stack[-1]]):
            stack.pop()
        if stack:
            found[row] = stack[-1]
        stack.append(row)
    return found
