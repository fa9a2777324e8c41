"""Replays a graph as it was and with less work, all such scenarios and all ranks at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from distprof.arrays import Array, Floats, Integers
from distprof.merge.replay.graph import MARK, WAIT, Graph
from distprof.merge.replay.order import Order

Less = tuple[Integers, Integers, Floats]
"""Rows, scenarios, and how much earlier a thread comes to each of them."""
AT_ONCE = 8
"""Scenarios in one go: each takes 8 bytes a part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relief:
    """Work that threads do not have to do in a scenario."""

    event: Integers
    """Indices of events, each once."""
    ns: Array
    """How much less is done in front of each; below 0: more."""


class Replay:
    """A graph that is ready to be replayed."""

    def __init__(self, graph: Graph, order: Order) -> None:
        """Sorts events and parts by round.

        Args:
            graph: Without joins that are stuck.
            order: Of it.
        """
        self._graph, events = graph, graph.events
        self.marks = np.flatnonzero(events.kind == MARK)
        """Events whose times a replay gives."""
        self._run, run_start = order.run, np.flatnonzero(np.diff(order.run, prepend=-1))
        self._origin = int(events.at_ns.min()) if len(events) else 0
        self._begins = (events.at_ns[np.flatnonzero(np.diff(events.rank, prepend=-1))] - self._origin).astype(float)
        # work since the run began; that in front of a wait belongs to the run before
        done = np.cumsum(graph.own_ns)
        self._previous_start = run_start[np.maximum(order.run - (events.kind == WAIT), 0)]
        self._offset = (done - done[self._previous_start]).astype(float)
        self._row = np.full(len(events), -1, np.int64)
        self._row[self.marks] = len(graph.parts) + np.arange(len(self.marks))
        calls = np.flatnonzero(events.kind == 0)
        self._row[calls] = events.part[calls]
        is_wait = events.kind == WAIT
        self._waits, self._wait_at = by_round(np.flatnonzero(is_wait), order.round_of_run[order.run], order.num_rounds)
        self._rest, self._rest_at = by_round(np.flatnonzero(~is_wait), order.round_of_run[order.run],
                                              order.num_rounds)
        self._parts, self._part_at = by_round(
            np.argsort(graph.parts.join, kind="stable"), order.round_of_join[graph.parts.join], order.num_rounds)
        self._leads = by_round(np.arange(len(graph.leads)), order.round_of_join[graph.leads[:, 0]], order.num_rounds)

    def times(self, scenarios: Sequence[Sequence[Relief]]) -> Floats:
        """When each of `marks` would have been, ns since the first event; shape (marks, scenarios).

        Args:
            scenarios: Of each, the reliefs of it; no event is in two of them.
        """
        found = [self._times(scenarios[start:start + AT_ONCE]) for start in range(0, len(scenarios), AT_ONCE)]
        return np.concatenate(found, axis=1) if found else np.empty((len(self.marks), 0))

    def _times(self, scenarios: Sequence[Sequence[Relief]]) -> Floats:
        state = _State(self._graph, self._begins, len(self.marks), len(scenarios))
        less_waits, less_rest = self._less(scenarios)
        for number in range(len(self._wait_at) - 1):
            waits = self._waits[self._wait_at[number]:self._wait_at[number + 1]]
            if len(waits):
                state.wait(waits, self._offset[waits], less_waits.get(number))
            rest = self._rest[self._rest_at[number]:self._rest_at[number + 1]]
            if len(rest):
                state.pass_by(rest, self._row[rest], self._offset[rest], less_rest.get(number))
            parts = self._parts[self._part_at[number]:self._part_at[number + 1]]
            if len(parts):
                leads, at = self._leads
                state.join(parts, self._graph.leads[leads[at[number]:at[number + 1]]])
        return state.times[len(self._graph.parts):]

    def _less(self, scenarios: Sequence[Sequence[Relief]]) -> tuple[dict[int, Less], dict[int, Less]]:
        """Relief since their run began of the waits, and of the other events, of each round."""
        waits, rest = list[Less](), list[Less]()
        for number, scenario in enumerate(scenarios):
            for relief in scenario:
                event, total = self._since_run(relief)
                is_wait = self._graph.events.kind[event] == WAIT
                for found, held in ((waits, is_wait), (rest, ~is_wait)):
                    found.append((event[held], np.full(int(held.sum()), number), total[held]))
        return (_placed(waits, self._waits, self._wait_at), _placed(rest, self._rest, self._rest_at))

    def _since_run(self, relief: Relief) -> tuple[Integers, Floats]:
        """Events of the relieved ranks, and the relief of each since its run began; those without are left out."""
        ranks = np.unique(self._graph.events.rank[relief.event])
        events = np.flatnonzero(np.isin(self._graph.events.rank, ranks))
        less = np.zeros(len(events))
        np.add.at(less, np.searchsorted(events, relief.event), relief.ns)
        done = np.cumsum(less)
        total = done - done[np.searchsorted(events, self._previous_start[events])]
        held = total != 0
        return events[held], total[held]


class _State:
    """Times of a replay that is under way; a column a scenario, ns since the first event."""

    def __init__(self, graph: Graph, begins: Floats, num_marks: int, num_scenarios: int) -> None:
        self._graph = graph
        self._now = np.repeat(begins[:, None], num_scenarios, axis=1)
        """When the run of each rank began."""
        self.times = np.zeros((len(graph.parts) + num_marks, num_scenarios))
        """Of each part when it was called, once it is joined when it ended; then of each mark."""
        num_queues = len(graph.single_lane)
        self._last = np.full((num_queues, num_scenarios), -np.inf)
        self._free = np.full((num_queues, num_scenarios), -np.inf)

    def wait(self, events: Integers, offset: Floats, less: Less | None) -> None:
        """Threads come to waits, and go on when their ops have ended."""
        rank = self._graph.events.rank[events]
        came = self._now[rank] + offset[:, None]
        if less is not None:
            came[less[0], less[1]] -= less[2]
        ended = self.times[self._graph.events.part[events]] + self._graph.wake_ns[events][:, None]
        self._now[rank] = np.maximum(came, ended)

    def pass_by(self, events: Integers, rows: Integers, offset: Floats, less: Less | None) -> None:
        """Threads come to calls and marks."""
        came = self._now[self._graph.events.rank[events]] + offset[:, None]
        if less is not None:
            came[less[0], less[1]] -= less[2]
        self.times[rows] = came

    def join(self, parts: Integers, leads: Integers) -> None:
        """Parts begin, and end when all have begun that they need; `parts` and `leads` by join."""
        graph = self._graph
        queue, join = graph.parts.queue[parts], graph.parts.join[parts]
        began = self.times[parts]
        lane = np.flatnonzero(graph.uses_lane[parts])
        began[lane] = np.maximum(began[lane], self._free[queue[lane]])
        began += graph.latency_ns[parts][:, None]
        first = np.flatnonzero(np.diff(join, prepend=-1))
        last = np.maximum.reduceat(began, first, axis=0)
        if len(leads):
            place = np.searchsorted(join[first], leads[:, 0])
            led = self.times[leads[:, 1]] - graph.transfer_ns[leads[:, 1]][:, None]
            np.maximum.at(last, place, led)
        begun = np.repeat(last, np.diff(np.append(first, len(join))), axis=0)
        self._rooted(parts, began, begun)
        ended = begun + graph.transfer_ns[parts][:, None]
        self.times[parts] = ended
        self._occupy(queue, ended)

    def _rooted(self, parts: Integers, began: Floats, begun: Floats) -> None:
        """Corrects when all had begun that parts need, of those that only need the root of their join."""
        led = np.flatnonzero(self._graph.parts.root[parts] >= 0)
        if len(led):
            order = np.argsort(parts)
            root = order[np.searchsorted(parts, self._graph.parts.root[parts[led]], sorter=order)]
            begun[led] = np.maximum(began[led], began[root])

    def _occupy(self, queue: Integers, ended: Array) -> None:
        held = queue >= 0
        if not held.all():
            queue, ended = queue[held], ended[held]
        before = self._last[queue]
        self._free[queue] = np.where(self._graph.single_lane[queue][:, None], ended, np.minimum(before, ended))
        self._last[queue] = np.maximum(before, ended)


def by_round(items: Integers, rounds: Integers, num_rounds: int) -> tuple[Integers, Integers]:
    """Items by round, in the order they have, and where each round begins; `rounds` is of all, by item."""
    order = np.argsort(rounds[items], kind="stable")
    items = items[order]
    return items, np.searchsorted(rounds[items], np.arange(num_rounds + 1))


def _placed(found: Sequence[Less], events: Integers, at: Integers) -> dict[int, Less]:
    """By round: places in it, scenarios, and ns."""
    if not found:
        return {}
    event, scenario, ns = (np.concatenate(parts) for parts in zip(*found, strict=True))
    if not len(event):
        return {}
    where = np.empty(int(events.max(initial=-1)) + 1, np.int64)
    where[events] = np.arange(len(events))
    place = where[event]
    rounds = np.searchsorted(at, place, "right") - 1
    order = np.argsort(rounds, kind="stable")
    numbers, firsts = np.unique(rounds[order], return_index=True)
    return {number: (place[mine] - at[number], scenario[mine], ns[mine])
            for number, mine in zip(numbers.tolist(), np.split(order, firsts[1:]), strict=True)}
