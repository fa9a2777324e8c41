"""Pairs the begins and ends of slices that are written as two events, and keeps them apart from others."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np

from distprof.arrays import Array, Integers
from distprof.merge.scan.scanned_columns import ASYNC_BEGIN, BEGIN, END

NO_NAME = -1
ALL = -2
"""In the place of a name or category: begins with any."""
FEW = 16
ROWS_AT_ONCE = 1 << 16

Place = tuple[int, int]
"""A thread and a time."""


def pair_halves(at_ns: Integers, thread: Array, phase: Array, name: Array, category: Array,
                link: Integers) -> tuple[Integers, Integers]:
    """Which begins and ends belong together: an end closes the innermost open begin of its thread that has its name.

    An asynchronous end closes that of its id and category instead.

    Args:
        at_ns: Time of each begin and end, in the order of the file.
        thread: Of each; likewise its phase.
        phase: As a code.
        name: Number of its name, -1 where there is none; likewise its category.
        category: A number.
        link: int64, what the id of asynchronous ones stands for.

    Returns:
        Places of the begins, and of the end of each, -1 where there is none.
    """
    begins, ends = array("q"), array("q")
    is_open: dict[object, _OpenBegins] = {}
    order = np.argsort(at_ns, kind="stable")
    for first in range(0, len(order), ROWS_AT_ONCE):  # lists of all of them would be many times as large
        rows = order[first:first + ROWS_AT_ONCE]
        columns = (column[rows].tolist() for column in (phase, thread, name, category, link))
        for place, kind, on, called, of, linked in zip(rows.tolist(), *columns, strict=True):
            where = on if kind in (BEGIN, END) else (linked, of)
            here = is_open.get(where)
            if kind in (BEGIN, ASYNC_BEGIN):
                if here is None:
                    here = is_open[where] = _OpenBegins()
                here.add(len(begins), called, of)
                begins.append(place)
                ends.append(-1)
            elif here is not None:
                number = here.close(called, of)
                if number >= 0:
                    ends[number] = place
                if not here:
                    del is_open[where]
    return np.array(begins, np.int64), np.array(ends, np.int64)


class _OpenBegins:
    """Begins in one place that have not ended. An end looks at the innermost few first: nearly all belong to these."""

    def __init__(self) -> None:
        self._stack: list[tuple[int, int, int]] = []
        """Number, name and category of each, the innermost last."""
        self._index: _OpenByName | None = None
        """All of them instead, once an end was not among the few."""

    def __len__(self) -> int:
        return len(self._stack) if self._index is None else len(self._index)

    def add(self, number: int, name: int, category: int) -> None:
        """Takes in a begin; numbers ascend."""
        if self._index is None:
            self._stack.append((number, name, category))
        else:
            self._index.add(number, name, category)

    def close(self, name: int, category: int) -> int:
        """Ends the innermost begin of that name or without one, and of that category; -1 without one.

        An end may be without either.
        """
        if self._index is None:
            stack = self._stack
            for place in range(len(stack) - 1, max(len(stack) - FEW, 0) - 1, -1):
                number, called, of = stack[place]
                if (name < 0 or called in (name, NO_NAME)) and (category < 0 or of == category):
                    del stack[place]
                    return number
            if len(stack) <= FEW:
                return -1
            self._index = _OpenByName()
            for one in stack:
                self._index.add(*one)
            stack.clear()
        return self._index.close(name, category)


class _OpenByName:
    """Open begins, so that an end finds its own without a look at the others."""

    def __init__(self) -> None:
        self._open: set[int] = set()
        self._stacks: dict[tuple[int, int], list[int]] = {}
        """Begins by name and category, the innermost last, some that have ended among them."""

    def __len__(self) -> int:
        return len(self._open)

    def add(self, number: int, name: int, category: int) -> None:
        self._open.add(number)
        for key in ((name, category), (name, ALL), (ALL, category), (ALL, ALL)):
            self._stacks.setdefault(key, []).append(number)

    def close(self, name: int, category: int) -> int:
        of = ALL if category < 0 else category
        found = max(self._innermost(called, of) for called in ((name, NO_NAME) if name >= 0 else (ALL,)))
        self._open.discard(found)
        return found

    def _innermost(self, name: int, category: int) -> int:
        stack = self._stacks.get((name, category), [])
        while stack and stack[-1] not in self._open:
            stack.pop()
        return stack[-1] if stack else -1


def ambiguous_places(thread: Array, start: Integers, end: Integers, begin_row: Integers,
                     end_row: Integers) -> set[Place]:
    """Where an E stands behind a B in the file that begins when it ends: it would end that B, so it has to end before.

    Args:
        thread: int32 a slice that is written as two events.
        start: Of each.
        end: Of each.
        begin_row: Event number of each B.
        end_row: Of its E, -1 where there is none.
    """
    has_end = end_row >= 0
    threads, times = np.concatenate([thread, thread[has_end]]), np.concatenate([start, end[has_end]])
    order = np.lexsort((times, threads))
    if not len(order):
        return set()
    threads, times, is_end = threads[order], times[order], order >= len(thread)
    rows = np.concatenate([begin_row, end_row[has_end]])[order]
    first = np.flatnonzero(np.append(True, (threads[1:] != threads[:-1]) | (times[1:] != times[:-1])))
    first_begin = np.minimum.reduceat(np.where(is_end, 2**63 - 1, rows), first)
    last_end = np.maximum.reduceat(np.where(is_end, rows, -1), first)
    found = first[first_begin < last_end]
    return set(zip(threads[found].tolist(), times[found].tolist(), strict=True))


def in_places(thread: Integers, at_ns: Integers, places: set[Place]) -> Any:
    """Numbers of the rows that are in one of these places."""
    rows = np.flatnonzero(np.isin(at_ns, np.array([at for _, at in places], np.int64)))
    there = [place in places for place in zip(thread[rows].tolist(), at_ns[rows].tolist(), strict=True)]
    return rows[np.array(there, bool)]
