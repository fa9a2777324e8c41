"""Pairs the begins and ends of slices that are written as two events, and keeps them apart from others."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from distprof.merge.scan.event_phases import ASYNC_BEGIN, BEGIN, END


def pair_halves(at_ns: Any, thread: Any, phase: Any, name: Any, category: Any, link: Any) -> tuple[Any, Any]:
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
    begins: list[int] = []
    ends: list[int] = []
    is_open: dict[tuple[int, ...], list[int]] = {}
    order = np.argsort(at_ns, kind="stable")
    names, categories = name.tolist(), category.tolist()
    columns = (column[order].tolist() for column in (phase, thread, name, category, link))
    for place, kind, on, called, of, linked in zip(order.tolist(), *columns, strict=True):
        stack = is_open.setdefault((on,) if kind in (BEGIN, END) else (linked, of), [])
        if kind in (BEGIN, ASYNC_BEGIN):
            stack.append(len(begins))
            begins.append(place)
            ends.append(-1)
            continue
        for index in reversed(range(len(stack))):
            begin = begins[stack[index]]
            if (called < 0 or names[begin] in (called, -1)) and (of < 0 or categories[begin] == of):
                ends[stack.pop(index)] = place
                break
    return np.array(begins, np.int64), np.array(ends, np.int64)


def end_before_begin(thread: Any, start: Any, duration: Any, cut: Any, begin_row: Any, end_row: Any) -> None:
    """Cuts a nanosecond from what ends when a B begins that stands before the E in the file: it would end that B.

    Args:
        thread: int32 a slice, pairs last.
        start: Of each.
        duration: Of each, cut where it sticks out.
        cut: Of each its new duration, -1 where it keeps its own; changed in place.
        begin_row: Event number of each B.
        end_row: Of its E, -1 where there is none.
    """
    num_plain = len(thread) - len(begin_row)
    end = start + duration
    begun = defaultdict(list)
    for row, place in zip(begin_row.tolist(), zip(thread[num_plain:].tolist(), start[num_plain:].tolist(), strict=True),
                          strict=True):
        begun[place].append(row)
    ambiguous = {
        place for row, place in zip(end_row.tolist(), zip(
            thread[num_plain:].tolist(), end[num_plain:].tolist(), strict=True), strict=True)
        if row >= 0 and any(other < row for other in begun.get(place, ()))}
    if not ambiguous:
        return
    for index, place in enumerate(zip(thread.tolist(), end.tolist(), strict=True)):
        if place in ambiguous and duration[index] > 0:
            cut[index] = duration[index] - 1
