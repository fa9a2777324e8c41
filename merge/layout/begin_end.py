"""Pairs the begins and ends of slices that are written as two events, and prevents ends from closing other slices."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np

from distprof.arrays import Array, Integers
from distprof.merge.scan.scanned_columns import ASYNC_BEGIN, BEGIN, END

NO_NAME = -1
ALL = -2
"""Key for begins of any name or category."""
FEW = 16
ROWS_AT_ONCE = 1 << 16

Place = tuple[int, int]
"""Thread and time."""


def pair_halves(at_ns: Integers, thread: Array, phase: Array, name: Array, category: Array,
                link: Integers) -> tuple[Integers, Integers]:
    """Pairs begins and ends: an end closes the innermost open begin of its thread with its name.

    An asynchronous end closes the innermost open begin with its id and category instead.

    Args:
        at_ns: Time of each begin and end, in the order of the file.
        thread: Number of each one's thread.
        phase: Code of each one's phase.
        name: Number of each one's name; -1 for none.
        category: Number of each one's category; -1 for none.
        link: int64, number of each one's id if it is asynchronous.

    Returns:
        Indices of the begins, and the index of each one's end, -1 if there is none.
    """
    begins, ends = array("q"), array("q")
    is_open: dict[object, _OpenBegins] = {}
    order = np.argsort(at_ns, kind="stable")
    for first in range(0, len(order), ROWS_AT_ONCE):  # lists of all rows would take many times the memory
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
    """Open begins of one thread or id. An end is searched for among the innermost few first, as it is nearly always
    there.
    """

    def __init__(self) -> None:
        self._stack: list[tuple[int, int, int]] = []
        """Number, name and category of each begin, the innermost last."""
        self._index: _OpenByName | None = None
        """Replaces the stack once an end was not found among the innermost few."""

    def __len__(self) -> int:
        return len(self._stack) if self._index is None else len(self._index)

    def add(self, number: int, name: int, category: int) -> None:
        """Adds a begin; numbers ascend."""
        if self._index is None:
            self._stack.append((number, name, category))
        else:
            self._index.add(number, name, category)

    def close(self, name: int, category: int) -> int:
        """Closes the innermost begin with that name or no name, and with that category; returns its number, or -1.

        An end without a name or category matches any.
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
    """Open begins by name and category, so that an end finds its begin directly."""

    def __init__(self) -> None:
        self._open: set[int] = set()
        self._stacks: dict[tuple[int, int], list[int]] = {}
        """Begins by name and category, the innermost last; may contain begins that have ended."""

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
    """Returns threads and times at which an E is after a B in the file that it does not belong to.

    The E would close that B, so its slice has to end earlier.

    Args:
        thread: int32 per slice that is written as two events.
        start: Start of each.
        end: End of each.
        begin_row: Event number of each B.
        end_row: Event number of its E; -1 for none.
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
    """Returns the indices of the rows that are at one of these places."""
    rows = np.flatnonzero(np.isin(at_ns, np.array([at for _, at in places], np.int64)))
    there = [place in places for place in zip(thread[rows].tolist(), at_ns[rows].tolist(), strict=True)]
    return rows[np.array(there, bool)]
