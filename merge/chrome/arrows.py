"""Finds which ends of arrows lack their other end or a slice to lie in, and the slice that each of the others is at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from distprof.merge.scan.engine import ENGINE
from distprof.merge.scan.event_phases import FLOW_END, FLOW_START
from distprof.merge.scan.scanned_columns import NONE

REUSED = 3 << 30
"""Numbers of arrows whose id an earlier arrow of the rank had; other ids are below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Ends of arrows, a row each."""

    row: Any
    """Event number, int64."""
    at_ns: Any
    key: Any
    """int64, equal for the ends of one arrow."""
    thread: Any
    phase: Any
    """s, t or f, as codes."""
    binds_next: Any
    """bool: it belongs to the next slice of its thread, not to the one around it."""
    is_slice: Any
    """bool: the row is the slice itself, by its `bind_id`."""


def complete_arrows(ends: Ends, owner: Any) -> tuple[Any, Any]:
    """Which ends of arrows lead somewhere, and which need another id.

    A viewer binds an end to the slice around it; an end whose start is not there, or whose slice was left out, it drops
    with an error, and a second start of one id too.

    Args:
        ends: Of arrows.
        owner: The slice of each, see `owners`.

    Returns:
        bool a row, False for what hangs in the air; int64 a row, a number for arrows whose id was in use before, else
        `NONE`.
    """
    bound = ends.is_slice | (owner >= 0)
    kept, number = np.zeros(len(bound), bool), np.full(len(bound), NONE)
    order = np.lexsort((ends.row, ends.at_ns, ends.key))
    order = order[bound[order]]
    if not len(order):
        return kept, number
    keys, kinds = ends.key[order], ends.phase[order]
    begins = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    sizes = np.diff(np.append(begins, len(keys)))
    plain = (sizes == 2) & (kinds[begins] == FLOW_START) & (kinds[np.minimum(begins + 1, len(kinds) - 1)] == FLOW_END)
    kept[order[begins[plain]]] = kept[order[begins[plain] + 1]] = True
    reused = REUSED
    for begin, size in zip(begins[~plain].tolist(), sizes[~plain].tolist(), strict=True):
        group = order[begin:begin + size]
        for index, arrow in enumerate(_arrows(ends.phase[group].tolist())):
            kept[group[arrow]] = True
            if index:
                number[group[arrow]] = reused
                reused += 1
    return kept, number


def _arrows(phases: list[int]) -> Iterator[list[int]]:
    """Places of a start with all that follows from it, out of ends in order of time; a start alone is none."""
    running: list[int] = []
    for place, phase in enumerate(phases):
        if phase == FLOW_START:
            if len(running) > 1:
                yield running
            running = [place]
        elif running:
            running.append(place)
    if len(running) > 1:
        yield running


def owners(ends: Ends, thread: Any, start_ns: Any, end_ns: Any, order: Any) -> Any:
    """The slice that each end belongs to, int64: the one around it, or the next one; -1 where there is none.

    Args:
        ends: Of arrows. Those that are slices themselves have none.
        thread: Of each slice of the trace.
        start_ns: Likewise.
        end_ns: Likewise.
        order: Slices by thread, start and longest first.
    """
    found = np.full(len(ends.thread), -1)
    threads = thread.take(order)
    for number in np.unique(ends.thread[~ends.is_slice]).tolist():
        mine = np.flatnonzero((ends.thread == number) & ~ends.is_slice)
        mine = mine[np.argsort(ends.at_ns[mine], kind="stable")]
        theirs = order[slice(*np.searchsorted(threads, np.array((number, number + 1), threads.dtype)))]
        starts, at_ns, next_ones = start_ns.take(theirs), ends.at_ns[mine], ends.binds_next[mine]
        around = ENGINE.find_innermost(starts, end_ns.take(theirs), at_ns)
        if next_ones.any():
            following = np.searchsorted(starts, at_ns, "right")
            around = np.where(next_ones, np.where(following < len(starts), following, -1), around)
        there = around >= 0
        found[mine[there]] = theirs[around[there]]
    return found
