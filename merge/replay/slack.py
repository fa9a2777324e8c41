"""Slack: how much later threads could come to each event before an instant that matters is later than it was."""

from __future__ import annotations

import numpy as np

from distprof.arrays import Integers
from distprof.merge.replay.chain import called_by, lanes_of
from distprof.merge.replay.graph import WAIT, Graph
from distprof.merge.replay.order import Order
from distprof.merge.replay.replay import by_round

NEVER = 1 << 61
"""Instants that may be as late as one likes."""


def latest_times(graph: Graph, order: Order, deadlines: Integers) -> Integers:
    """How late each event may be.

    Of a queue with two lanes, one part keeps the lane that it has. So an event may be later than is said here where
    the other lane would be free by then.

    Args:
        graph: Without joins that are stuck.
        order: Of it.
        deadlines: Of each event, how late it may be by itself; int64 ns, `NEVER` without.
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
        """Of queues with two lanes: how early a part behind needs one, and the same of those with another `busy`."""
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
        """How late parts may begin, and what is in front of them may be."""
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
        """How late parts may begin so that those that need them end in time."""
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
        """Notes how early parts need a lane; no two of them are of one queue."""
        first, second = self._ready[0][queue], self._ready[1][queue]
        same, earlier = self._busy[queue] == busy, ready < first
        self._ready[1][queue] = np.where(same, second, np.where(earlier, first, np.minimum(second, ready)))
        self._ready[0][queue] = np.minimum(first, ready)
        self._busy[queue] = np.where(earlier, busy, self._busy[queue])

    def _runs(self, run: Integers) -> None:
        """How late the events of runs may be; what follows the last of each is known."""
        events, graph, base = self._graph.events, self._graph, 4 * self._most
        last = run[np.append(self._run[run[1:]] != self._run[run[:-1]], True)]
        last = last[self._follows[last]]
        self.latest[last] = np.minimum(self.latest[last], self.latest[last + 1] - graph.own_ns[last + 1])
        # the least of all behind an event in its run: bases keep runs apart
        bases = np.cumsum(np.diff(self._run[run], prepend=-1) != 0) * base
        late = np.minimum(self.latest[run] - self._offset[run] - self._low, self._most)
        least = np.minimum.accumulate((late + bases)[::-1])[::-1] - bases
        self.latest[run] = np.where(least >= self._most, NEVER, least + self._low + self._offset[run])
        waits = run[events.kind[run] == WAIT]
        np.minimum.at(self._end, events.part[waits], self.latest[waits] - graph.wake_ns[waits])
