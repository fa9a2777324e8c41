"""The critical path to an instant: the longest chain of work, collectives and queues that leads to it.

Lanes of queues tell which parts each part of a queue had to wait for. Slack is how much later threads could come to an
event off the path without making the instant later.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from distprof.arrays import Flags, Integers
from distprof.merge.replay.graph import CALL, WAIT, Graph
from distprof.merge.replay.order import Order
from distprof.merge.replay.replay import by_round

NEVER = 1 << 61
"""Time of instants that may be arbitrarily late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """For each part, parts before it in its queue; -1 if none."""

    holder: Integers
    """The part whose end made a lane free for it; -1 also for a part that began although no lane seemed to be free."""
    busy: Integers
    """The part that held the other lane, in a queue with two lanes."""


def lanes_of(graph: Graph, is_there: Flags) -> Lanes:
    """Finds the parts that held lanes.

    Args:
        graph: A graph with `previous` of its parts.
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
    """Returns the event that called each part; the number of events if there is none."""
    events = graph.events
    calls = np.flatnonzero(events.kind == CALL)
    found = np.full(len(graph.parts), len(events), np.int64)
    found[events.part[calls]] = calls
    return found


WORK, WAKING, MOVING, STARTING = "work", "waking", "moving", "starting"
"""Kinds of links."""


class Link(NamedTuple):
    """A piece of the critical path, on one rank."""

    kind: str
    """work before an event; waking up after a part; moving of a part, after all it needs had begun; starting of a part,
    from when it was called, or a lane was free, until it began."""
    item: int
    """Index of the event that work leads to; for other kinds, index of the part."""
    rank: int
    """Index of the rank."""
    start_ns: int
    end_ns: int


class Chains:
    """Finds critical paths in a graph, from measured times.

    Args:
        graph: A graph without circular joins.
        order: Its order.
    """

    def __init__(self, graph: Graph, order: Order) -> None:
        events, parts = graph.events, graph.parts
        is_there = order.round_of_join[parts.join] >= 0 if len(parts) else np.zeros(0, bool)
        self._graph, self._holder, self._call = graph, lanes_of(graph, is_there).holder, called_by(graph)
        first = np.diff(events.rank, prepend=-1) != 0
        before = np.where(first, events.at_ns, np.concatenate((events.at_ns[:1], events.at_ns[:-1])))
        self.came_ns = np.where(events.kind == WAIT, before + graph.own_ns, events.at_ns)
        """When threads came to each event; for waits, this is before they went on."""
        self._first, self._before = first, before
        self._last = self._last_needed()

    def to(self, event: int, since_ns: int) -> list[Link]:
        """Returns the critical path to an event, in order of time.

        It goes back to `since_ns`, or only to the first event of a rank if it reaches that. Its links are contiguous,
        so their lengths add up to the time in between.
        """
        found, now = list[Link](), int(self._graph.events.at_ns[event])
        for link in self._backwards(event):
            # a link may begin after it ends if clocks are slightly wrong
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
        """Returns, for each part, the one that began last of all that it needs; the part itself if it was as late."""
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


def latest_times(graph: Graph, order: Order, deadlines: Integers) -> Integers:
    """Returns the latest time of each event at which deadlines hold: the backward pass of the critical path method.

    In a queue with two lanes, each part keeps its lane. So an event may be even later if the other lane would be free
    by then.

    Args:
        graph: A graph without circular joins.
        order: Its order.
        deadlines: Latest time of each event on its own, int64 ns; `NEVER` without a deadline.
    """
    return _Backwards(graph, order, deadlines).latest


class _Backwards:
    """Walks through the rounds from the last to the first."""

    def __init__(self, graph: Graph, order: Order, deadlines: Integers) -> None:
        events, parts = graph.events, graph.parts
        self._graph, self._run = graph, order.run
        self.latest = np.minimum(deadlines, NEVER)
        there = order.round_of_join[parts.join] >= 0 if len(parts) else np.zeros(0, bool)
        self._lanes, self._call = lanes_of(graph, there), called_by(graph)
        self._end, self._begun = (np.full(len(parts), NEVER, np.int64) for _ in range(2))
        queues = len(graph.single_lane)
        self._ready = np.full((2, queues), NEVER, np.int64)
        """In queues with two lanes, when a later part needs one at the earliest, and the same for another `busy`."""
        self._busy = np.full(queues, -2, np.int64)
        """The part that holds the other lane then."""
        done = np.cumsum(graph.own_ns)
        self._offset = done - done[np.flatnonzero(np.diff(order.run, prepend=-1))][order.run] if len(done) else done
        self._follows = np.append(events.rank[1:] == events.rank[:-1], False)[:len(events)]
        self._low = int(events.at_ns.min()) if len(events) else 0
        self._most = 2 * int(np.ptp(events.at_ns)) + 1 if len(events) else 1
        self._walk(order)

    def _walk(self, order: Order) -> None:
        graph, rounds = self._graph, order.num_rounds
        runs, run_at = by_round(np.arange(len(order.run)), order.round_of_run[order.run], rounds)
        parts, part_at = by_round(np.arange(len(graph.parts)), order.round_of_join[graph.parts.join], rounds)
        leads, lead_at = by_round(np.arange(len(graph.leads)), order.round_of_join[graph.leads[:, 0]], rounds)
        for number in reversed(range(rounds)):
            mine = parts[part_at[number]:part_at[number + 1]]
            if len(mine):
                self._join(mine, graph.leads[leads[lead_at[number]:lead_at[number + 1]]])
            run = runs[run_at[number]:run_at[number + 1]]
            if len(run):
                self._runs(run)

    def _join(self, parts: Integers, leads: Integers) -> None:
        """Determines how late parts may begin, and how late what is before them may be."""
        graph, of = self._graph, self._graph.parts
        queue = of.queue[parts]
        double = np.flatnonzero((queue >= 0) & ~graph.single_lane[queue]) if len(self._busy) else parts[:0]
        held, place = parts[double], queue[double]
        free = np.where(self._busy[place] == held, self._ready[1][place], self._ready[0][place])
        self._end[held] = np.minimum(self._end[held], free)
        start = self._start(parts, leads)
        ready = start - graph.latency_ns[parts]
        np.minimum.at(self.latest, self._call[parts], ready)
        alone = np.flatnonzero((self._lanes.holder[parts] >= 0) & (self._lanes.busy[parts] < 0))
        np.minimum.at(self._end, self._lanes.holder[parts[alone]], ready[alone])
        uses = double[graph.uses_lane[held]]
        self._need(queue[uses], self._lanes.busy[parts[uses]], ready[uses])

    def _start(self, parts: Integers, leads: Integers) -> Integers:
        """Returns how late parts may begin so that those that need them end in time."""
        of = self._graph.parts
        begun = np.minimum(self._end[parts] - self._graph.transfer_ns[parts], self._begun[parts])
        joins, place = np.unique(of.join[parts], return_inverse=True)
        led = of.root[parts] >= 0
        needed = np.full(len(joins), NEVER, np.int64)
        np.minimum.at(needed, place[~led], begun[~led])
        found = np.where(led, np.minimum(begun, needed[place]), needed[place])
        sorter = np.argsort(parts)
        roots = sorter[np.searchsorted(parts, of.root[parts[led]], sorter=sorter)]
        np.minimum.at(found, roots, begun[led])
        np.minimum.at(self._begun, leads[:, 1], needed[np.searchsorted(joins, leads[:, 0])])
        return found

    def _need(self, queue: Integers, busy: Integers, ready: Integers) -> None:
        """Notes how early parts need a lane; no two of them are in one queue."""
        first, second = self._ready[0][queue], self._ready[1][queue]
        same, earlier = self._busy[queue] == busy, ready < first
        self._ready[1][queue] = np.where(same, second, np.where(earlier, first, np.minimum(second, ready)))
        self._ready[0][queue] = np.minimum(first, ready)
        self._busy[queue] = np.where(earlier, busy, self._busy[queue])

    def _runs(self, run: Integers) -> None:
        """Determines how late the events of runs may be; for what follows the last event of each run this is known."""
        events, graph, base = self._graph.events, self._graph, 4 * self._most
        last = run[np.append(self._run[run[1:]] != self._run[run[:-1]], True)]
        last = last[self._follows[last]]
        self.latest[last] = np.minimum(self.latest[last], self.latest[last + 1] - graph.own_ns[last + 1])
        # minimum over all later events of the run: bases keep runs apart
        bases = np.cumsum(np.diff(self._run[run], prepend=-1) != 0) * base
        late = np.minimum(self.latest[run] - self._offset[run] - self._low, self._most)
        least = np.minimum.accumulate((late + bases)[::-1])[::-1] - bases
        self.latest[run] = np.where(least >= self._most, NEVER, least + self._low + self._offset[run])
        waits = run[events.kind[run] == WAIT]
        np.minimum.at(self._end, events.part[waits], self.latest[waits] - graph.wake_ns[waits])
