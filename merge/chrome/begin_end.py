"""Pairs the begins and ends of slices that are written as two events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distprof.merge.scan.event_phases import ASYNC_BEGIN, BEGIN, END


@dataclass(frozen=True, slots=True, kw_only=True)
class Halves:
    """Begins and ends, a row each, in the order of the file."""

    row: Any
    """Event number, int64."""
    at_ns: Any
    thread: Any
    phase: Any
    name: Any
    """Number of the name, -1 where there is none. Likewise the category."""
    category: Any
    link: Any
    """int64, what the id of asynchronous ones stands for."""


def pair_halves(halves: Halves) -> tuple[Any, Any]:
    """Which begins and ends belong together: an end closes the innermost open begin of its thread that has its name.

    An asynchronous end closes that of its id and category instead.

    Returns:
        Places of the begins, and of the end of each, -1 where there is none.
    """
    begins: list[int] = []
    ends: list[int] = []
    is_open: dict[tuple[int, ...], list[int]] = {}
    order = np.argsort(halves.at_ns, kind="stable")
    columns = (halves.phase, halves.thread, halves.name, halves.category, halves.link)
    names, categories = halves.name.tolist(), halves.category.tolist()
    for place, phase, thread, name, category, link in zip(
            order.tolist(), *(column[order].tolist() for column in columns), strict=True):
        stack = is_open.setdefault((thread,) if phase in (BEGIN, END) else (link, category), [])
        if phase in (BEGIN, ASYNC_BEGIN):
            stack.append(len(begins))
            begins.append(place)
            ends.append(-1)
            continue
        for index in reversed(range(len(stack))):
            begin = begins[stack[index]]
            if (name < 0 or names[begin] in (name, -1)) and (category < 0 or categories[begin] == category):
                ends[stack.pop(index)] = place
                break
    return np.array(begins, np.int64), np.array(ends, np.int64)
