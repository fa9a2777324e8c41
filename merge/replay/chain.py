"""The longest chain of work, collectives and queues that leads to an instant: nothing on it could have been earlier.

Lanes of queues tell which parts each part of a queue had to wait for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from distprof.arrays import Flags, Integers
from distprof.merge.replay.graph import CALL, WAIT, Graph
from distprof.merge.replay.order import Order


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """Of each part, parts in front of it in its queue; -1: none."""

    holder: Integers
    """The one whose end made a lane free for it; none for a part that began although no lane seemed free."""
    busy: Integers
    """The one that held the other lane, of a queue with two lanes."""


def lanes_of(graph: Graph, is_there: Flags) -> Lanes:
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


def called_by(graph: Graph) -> Integers:
    """Of each part, the event that called it; behind all events where none did."""
    events = graph.events
    calls = np.flatnonzero(events.kind == CALL)
    found = np.full(len(graph.parts), len(events), np.int64)
    found[events.part[calls]] = calls
    return found


WORK, WAKING, MOVING, STARTING = "work", "waking", "moving", "starting"


class Link(NamedTuple):
    """A piece of a chain, on one rank."""

    kind: str
    """work in front of an event; waking up behind a part; moving of a part, after all it needs had begun; starting of a
    part, from when it was called, or a lane was free, until it began."""
    item: int
    """Index of the event that work leads to; else of the part."""
    rank: int
    """Index of the rank."""
    start_ns: int
    end_ns: int


class Chains:
    """Finds chains in a graph, by the times that were measured.

    Args:
        graph: Without joins that are stuck.
        order: Of it.
    """

    def __init__(self, graph: Graph, order: Order) -> None:
        events, parts = graph.events, graph.parts
        is_there = order.round_of_join[parts.join] >= 0 if len(parts) else np.zeros(0, bool)
        self._graph, self._holder, self._call = graph, lanes_of(graph, is_there).holder, called_by(graph)
        first = np.diff(events.rank, prepend=-1) != 0
        before = np.where(first, events.at_ns, np.concatenate((events.at_ns[:1], events.at_ns[:-1])))
        self.came_ns = np.where(events.kind == WAIT, before + graph.own_ns, events.at_ns)
        """When threads came to each event, which is before they went on where they waited."""
        self._first, self._before = first, before
        self._last = self._last_needed()

    def to(self, event: int, since_ns: int) -> list[Link]:
        """The chain that leads to an event, in order of time.

        It reaches back to `since_ns`; not so far where it begins with the first event of a rank. Its links follow each
        other without gaps, so that their lengths add up to the time between.
        """
        found, now = list[Link](), int(self._graph.events.at_ns[event])
        for link in self._backwards(event):
            # clocks that are a little off may let a link begin after it ends
            start = min(max(link.start_ns, since_ns), now)
            if start < now:
                found.append(link._replace(start_ns=start, end_ns=now))
            now = start
            if now <= since_ns:
                break
        return found[::-1]

    def _backwards(self, event: int) -> Iterator[Link]:
        events, parts, graph = self._graph.events, self._graph.parts, self._graph
        place: int = event
        while True:
            rank, at, part = int(events.rank[place]), int(events.at_ns[place]), int(events.part[place])
            if events.kind[place] != WAIT or parts.end_ns[part] <= self.came_ns[place]:
                if self._first[place]:
                    return
                yield Link(WORK, place, rank, int(self._before[place]), at)
                place -= 1
                continue
            yield Link(WAKING, part, rank, int(parts.end_ns[part]), at)
            while part >= 0:
                rank = int(events.rank[self._call[part]])
                begun = int(parts.end_ns[part] - graph.transfer_ns[part])
                yield Link(MOVING, part, rank, begun, int(parts.end_ns[part]))
                part = int(self._last[part])
                place, holder = int(self._call[part]), int(self._holder[part])
                ready = int(parts.start_ns[part] - graph.latency_ns[part])
                yield Link(STARTING, part, int(events.rank[place]), ready, int(parts.start_ns[part]))
                part = holder if holder >= 0 and parts.end_ns[holder] > events.at_ns[place] else -1

    def _last_needed(self) -> Integers:
        """Of each part, the one that began last of all that it needs; itself where it was as late."""
        parts, leads = self._graph.parts, self._graph.leads
        joins = int(parts.join.max(initial=-1)) + 1
        last, which = np.full(joins, np.iinfo(np.int64).min), np.full(joins, -1, np.int64)
        own = np.arange(len(parts))
        for join, part in ((parts.join, own), (leads[:, 0], leads[:, 1])):
            np.maximum.at(last, join, parts.start_ns[part])
            latest = parts.start_ns[part] == last[join]
            which[join[latest]] = part[latest]
        found = np.where(parts.start_ns == last[parts.join], own, which[parts.join])
        led = np.flatnonzero(parts.root >= 0)
        root = parts.root[led]
        found[led] = np.where(parts.start_ns[root] > parts.start_ns[led], root, led)
        return found
