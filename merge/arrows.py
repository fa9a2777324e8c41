"""Arrows of a trace: their ends and the slices come in, the ends that would hang in the air go out."""

from __future__ import annotations

from typing import Any

import numpy as np

START, STEP, END = (ord(letter) for letter in "stf")


def hanging(phase: Any, key: Any, thread: Any, at_ns: Any, slices: tuple[Any, Any, Any]) -> Any:
    """Which ends of arrows lead nowhere: outside of every slice, or without the other end.

    A viewer binds an end to the slice around it; an end whose start is not there, or whose slice was left out, it drops
    with an error. Ids may be used again once their arrow has ended.

    Args:
        phase: s, t or f a row, as codes.
        key: int64 a row, equal for the ends of one arrow.
        thread: int32 a row.
        at_ns: Time of the end.
        slices: Thread, start and end of every slice.

    Returns:
        bool a row.
    """
    inside = _inside(thread, at_ns, *slices)
    rank = np.select([phase == START, phase == STEP], [0, 1], 2)
    order = np.lexsort((rank, at_ns, key))
    order = order[inside[order]]
    keys, kinds = key[order], phase[order]
    begins = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]])) if len(keys) else np.empty(0, np.int64)
    sizes = np.diff(np.append(begins, len(keys)))
    plain = (sizes == 2) & (kinds[begins] == START) & (kinds[np.minimum(begins + 1, max(len(kinds) - 1, 0))] == END)
    kept = np.zeros(len(phase), bool)
    kept[order[begins[plain]]] = kept[order[begins[plain] + 1]] = True
    for begin, size in zip(begins[~plain].tolist(), sizes[~plain].tolist(), strict=True):
        group = order[begin:begin + size]
        kept[group[_whole(phase[group].tolist())]] = True
    return ~kept


def _whole(phases: list[int]) -> list[int]:
    """Places of a start, steps and an end that belong together, out of ends in order of time."""
    found: list[int] = []
    running: list[int] = []
    for place, phase in enumerate(phases):
        if phase == START:
            running = [place]
        elif running:
            running.append(place)
            if phase == END:
                found += running
                running = []
    return found


def _inside(thread: Any, at_ns: Any, threads: Any, starts: Any, ends: Any) -> Any:
    """True for points that lie in some slice of their thread."""
    inside = np.zeros(len(thread), bool)
    for number in np.unique(thread).tolist():
        mine, theirs = np.flatnonzero(thread == number), np.flatnonzero(threads == number)
        if not len(theirs):
            continue
        theirs = theirs[np.argsort(starts[theirs], kind="stable")]
        latest = np.maximum.accumulate(ends[theirs])
        before = np.searchsorted(starts[theirs], at_ns[mine], "right")
        inside[mine] = (before > 0) & (latest[np.maximum(before - 1, 0)] >= at_ns[mine])
    return inside
