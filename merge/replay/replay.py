"""Replays a graph unchanged and with less work: all ranks and several scenarios at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from distprof.arrays import Array, Floats, Integers
from distprof.merge.replay.graph import CALL, MARK, WAIT, Graph
from distprof.merge.replay.order import Order

Less = tuple[Integers, Integers, Floats]
"""Rows, scenarios, and how much earlier a thread comes to each of them."""
AT_ONCE = 8
"""Number of scenarios that are replayed at a time; each takes 8 bytes per part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relief:
    """Work that threads do not have to do in a scenario."""

    event: Integers
    """Indices of events, without duplicates."""
    ns: Array
    """How much less work is done before each event; negative values add work."""


class Replay:
    """A graph that is ready to be replayed."""

    def __init__(self, graph: Graph, order: Order) -> None:
        """Sorts events and parts by round.

        Args:
            graph: A graph without circular joins.
            order: Its order.
        """
        self._graph, events = graph, graph.events
        self.marks = np.flatnonzero(events.kind == MARK)
        """Events whose times a replay returns."""
        self._run, run_start = order.run, np.flatnonzero(np.diff(order.run, prepend=-1))
        self._origin = int(events.at_ns.min()) if len(events) else 0
        self._begins = (events.at_ns[np.flatnonzero(np.diff(events.rank, prepend=-1))] - self._origin).astype(float)
        # work since the run began; work before a wait belongs to the previous run
        done = np.cumsum(graph.own_ns)
        self._previous_start = run_start[np.maximum(order.run - (events.kind == WAIT), 0)]
        self._offset = (done - done[self._previous_start]).astype(float)
        self._waits, self._wait_at = by_round(np.flatnonzero(events.kind == WAIT), order.round_of_run[order.run],
                                              order.num_rounds)
        self._joins = _Joins(graph, order)
        row = np.full(len(events), -1, np.int64)
        row[self.marks] = len(graph.parts) + np.arange(len(self.marks))
        calls = np.flatnonzero(events.kind == CALL)
        row[calls] = self._joins.row[events.part[calls]]
        self._has_row = row >= 0
        self._rest, self._rest_at = by_round(np.flatnonzero(self._has_row), order.round_of_run[order.run],
                                             order.num_rounds)
        self._of_waits = (events.rank[self._waits], self._offset[self._waits, None],
                          self._joins.row[events.part[self._waits]], graph.wake_ns[self._waits, None])
        self._of_rest = events.rank[self._rest], row[self._rest], self._offset[self._rest, None]

    def times(self, scenarios: Sequence[Sequence[Relief]]) -> Floats:
        """Returns when each of `marks` would have been, ns since the first event; shape (marks, scenarios).

        Args:
            scenarios: The reliefs of each scenario; within a scenario, no event has two reliefs.
        """
        found = [self._times(scenarios[start:start + AT_ONCE]) for start in range(0, len(scenarios), AT_ONCE)]
        return np.concatenate(found, axis=1) if found else np.empty((len(self.marks), 0))

    def _times(self, scenarios: Sequence[Sequence[Relief]]) -> Floats:
        state = _State(self._joins, self._begins, len(self.marks), len(scenarios))
        less_waits, less_rest = self._less(scenarios)
        wait_at, rest_at = self._wait_at.tolist(), self._rest_at.tolist()
        for number in range(len(wait_at) - 1):
            some = slice(wait_at[number], wait_at[number + 1])
            if some.start < some.stop:
                state.wait(less_waits.get(number), *(one[some] for one in self._of_waits))
            some = slice(rest_at[number], rest_at[number + 1])
            if some.start < some.stop:
                state.pass_by(less_rest.get(number), *(one[some] for one in self._of_rest))
            state.join(number)
        return state.times[len(self._graph.parts):]

    def _less(self, scenarios: Sequence[Sequence[Relief]]) -> tuple[dict[int, Less], dict[int, Less]]:
        """Returns by round the relief since the begin of their run, of waits and of other events."""
        waits, rest = list[Less](), list[Less]()
        for number, scenario in enumerate(scenarios):
            for relief in scenario:
                event, total = self._since_run(relief)
                is_wait = self._graph.events.kind[event] == WAIT
                for found, held in ((waits, is_wait), (rest, self._has_row[event])):
                    found.append((event[held], np.full(int(held.sum()), number), total[held]))
        return (_placed(waits, self._waits, self._wait_at), _placed(rest, self._rest, self._rest_at))

    def _since_run(self, relief: Relief) -> tuple[Integers, Floats]:
        """Returns events of the relieved ranks with their relief since the run began, if that is not 0."""
        ranks = np.unique(self._graph.events.rank[relief.event])
        events = np.flatnonzero(np.isin(self._graph.events.rank, ranks))
        less = np.zeros(len(events))
        np.add.at(less, np.searchsorted(events, relief.event), relief.ns)
        done = np.cumsum(less)
        total = done - done[np.searchsorted(events, self._previous_start[events])]
        held = total != 0
        return events[held], total[held]


class _Joins:
    """Parts, sorted by round and join, and what does not depend on the scenario."""

    def __init__(self, graph: Graph, order: Order) -> None:
        parts, rounds = graph.parts, order.round_of_join
        mine, at = by_round(np.argsort(parts.join, kind="stable"), rounds[parts.join], order.num_rounds)
        self.row = np.empty(len(parts), np.int64)
        """Place of each part. A round is a slice of places."""
        self.row[mine] = np.arange(len(mine))
        self.queue, join = parts.queue[mine], parts.join[mine]
        self.latency_ns, self.transfer_ns = graph.latency_ns[mine, None], graph.transfer_ns[mine, None]
        self.first = np.flatnonzero(np.diff(join, prepend=-1))
        """Place of the first part of each join."""
        self.size = np.diff(self.first, append=len(join))
        self.lane, self.held = np.flatnonzero(graph.uses_lane[mine]), np.flatnonzero(self.queue >= 0)
        """Places of parts that use lanes, and of those that have a queue."""
        self.num_queues, self.single_lane = len(graph.single_lane), graph.single_lane[self.queue[self.held], None]
        self.rooted = np.flatnonzero(parts.root[mine] >= 0)
        self.root = self.row[parts.root[mine][self.rooted]]
        leads, lead_at = by_round(np.arange(len(graph.leads)), rounds[graph.leads[:, 0]], order.num_rounds)
        number = np.zeros(len(rounds), np.int64)
        number[join[self.first]] = np.arange(len(self.first))
        self.led, self.leading = number[graph.leads[leads, 0]], self.row[graph.leads[leads, 1]]
        """Joins and the places of parts that lead them."""
        self.at = [(slice(*part), *(slice(*np.searchsorted(places, part).tolist())
                                    for places in (self.first, self.lane, self.held, self.rooted)), slice(*lead))
                   for part, lead in zip(pairwise(at.tolist()), pairwise(lead_at.tolist()), strict=True)]
        """For each round: slices of parts, joins, `lane`, `held`, `rooted` and leads."""

    def __len__(self) -> int:
        return len(self.row)


class _State:
    """Times of a replay in progress, ns since the first event; one column per scenario."""

    def __init__(self, joins: _Joins, begins: Floats, num_marks: int, num_scenarios: int) -> None:
        self._joins = joins
        self._now = np.repeat(begins[:, None], num_scenarios, axis=1)
        """When the current run of each rank began."""
        self.times = np.zeros((len(joins) + num_marks, num_scenarios))
        """For each part, when it was called, and, after its join, when it ended; then for each mark."""
        self._last = np.full((joins.num_queues, num_scenarios), -np.inf)
        """Latest end in each queue so far, and from when on a lane is free (`_free`)."""
        self._free = np.full((joins.num_queues, num_scenarios), -np.inf)

    def wait(self, less: Less | None, rank: Integers, offset: Array, part: Integers, wake_ns: Array) -> None:
        """Lets threads come to waits, and go on when their ops have ended."""
        came = self._now[rank] + offset
        if less is not None:
            came[less[0], less[1]] -= less[2]
        self._now[rank] = np.maximum(came, self.times[part] + wake_ns)

    def pass_by(self, less: Less | None, rank: Integers, row: Integers, offset: Array) -> None:
        """Lets threads come to calls and marks."""
        came = self._now[rank] + offset
        if less is not None:
            came[less[0], less[1]] -= less[2]
        self.times[row] = came

    def join(self, number: int) -> None:
        """Lets the parts of a round begin, and end when all that they need have begun."""
        of, (some, joins, lanes, held, rooted, leads) = self._joins, self._joins.at[number]
        if some.start == some.stop:
            return
        began = self.times[some]  # in place: the ends overwrite it
        lane = of.lane[lanes]
        began[lane - some.start] = np.maximum(began[lane - some.start], self._free[of.queue[lane]])
        began += of.latency_ns[some]
        last = np.maximum.reduceat(began, of.first[joins] - some.start, axis=0)
        if leads.start < leads.stop:
            leading = of.leading[leads]
            np.maximum.at(last, of.led[leads] - joins.start, self.times[leading] - of.transfer_ns[leading])
        begun = np.repeat(last, of.size[joins], axis=0)
        if rooted.start < rooted.stop:  # they need only the root of their join
            mine, root = of.rooted[rooted] - some.start, of.root[rooted] - some.start
            begun[mine] = np.maximum(began[mine], began[root])
        self.times[some] = begun + of.transfer_ns[some]
        self._occupy(held)

    def _occupy(self, held: slice) -> None:
        parts = self._joins.held[held]
        queue, ended = self._joins.queue[parts], self.times[parts]
        before = self._last[queue]
        self._free[queue] = np.where(self._joins.single_lane[held], ended, np.minimum(before, ended))
        self._last[queue] = np.maximum(before, ended)


def by_round(items: Integers, rounds: Integers, num_rounds: int) -> tuple[Integers, Integers]:
    """Returns items sorted by round (stable), and where each round begins; `rounds` has the round of every item."""
    order = np.argsort(rounds[items], kind="stable")
    items = items[order]
    return items, np.searchsorted(rounds[items], np.arange(num_rounds + 1))


def _placed(found: Sequence[Less], events: Integers, at: Integers) -> dict[int, Less]:
    """Returns by round the places within it, scenarios, and ns."""
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
