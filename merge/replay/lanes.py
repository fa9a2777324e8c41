"""Lanes of queues: which parts each part of a queue had to wait for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distprof.merge.replay.graph import CALL, Graph


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """Of each part, parts in front of it in its queue; -1: none."""

    holder: Any
    """The one whose end made a lane free for it; none for a part that began although no lane seemed free."""
    busy: Any
    """The one that held the other lane, of a queue with two lanes."""


def lanes_of(graph: Graph, is_there: Any) -> Lanes:
    """Finds these parts.

    Args:
        graph: With `previous` of its parts.
        is_there: True for parts that are replayed.
    """
    parts = graph.parts
    holder, busy = (np.full(len(parts), -1, np.int64) for _ in range(2))
    in_queue = is_there & (parts.queue >= 0)
    single = in_queue & graph.single_lane[parts.queue] if len(graph.single_lane) else in_queue & False
    alone = single & graph.uses_lane
    holder[alone] = graph.previous[alone]
    double = np.flatnonzero(in_queue & ~single)
    ends, uses, queues = (values.tolist() for values in (parts.end_ns, graph.uses_lane, parts.queue))
    latest: dict[int, tuple[int, int]] = {}
    for part in double[np.argsort(called_by(graph)[double], kind="stable")].tolist():
        first, second = latest.get(queues[part], (-1, -1))
        if uses[part]:
            holder[part], busy[part] = second, first
        if first < 0 or ends[part] > ends[first]:
            latest[queues[part]] = part, first
        elif second < 0 or ends[part] > ends[second]:
            latest[queues[part]] = first, part
    return Lanes(holder=holder, busy=busy)


def called_by(graph: Graph) -> Any:
    """Of each part, the event that called it; behind all events where none did."""
    events = graph.events
    calls = np.flatnonzero(events.kind == CALL)
    found = np.full(len(graph.parts), len(events), np.int64)
    found[events.part[calls]] = calls
    return found
