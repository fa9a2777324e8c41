"""The order in which a graph is replayed: rounds of runs and joins that do not depend on each other within a round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distprof.arrays import Flags, Integers
from distprof.merge.replay.graph import CALL, WAIT, Graph, without


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Rounds (topological levels): first the runs of a round are replayed, then its joins.

    A run is what a thread does from one wait to the next; it depends on its first wait.
    """

    run: Integers
    """Run of each event; a wait belongs to the run that it begins."""
    round_of_run: Integers
    round_of_join: Integers
    """-1 if the join is no longer in the graph."""
    num_rounds: int


def ordered(graph: Graph) -> tuple[Graph, Order]:
    """Finds the rounds by Kahn's algorithm, each as early as possible.

    Returns:
        The graph without joins that depend on themselves, because something was matched wrongly; and its order.
    """
    while True:
        events = graph.events
        new = events.kind == WAIT
        new[np.flatnonzero(np.diff(events.rank, prepend=-1))] = True
        run = np.cumsum(new) - 1
        needs = _Needs(graph, run)
        rounds, circular = _rounds(needs)
        if not len(circular):
            of_run, of_join = rounds[:needs.num_runs], rounds[needs.num_runs:]
            return graph, Order(run=run, round_of_run=of_run, round_of_join=of_join,
                                num_rounds=int(rounds.max(initial=-1)) + 1)
        graph = without(graph, circular)


class _Needs:
    """Dependencies: nodes are runs, then joins; edges lead from what is needed to what needs it."""

    def __init__(self, graph: Graph, run: Integers) -> None:
        events, parts = graph.events, graph.parts
        self.num_runs = int(run[-1]) + 1 if len(run) else 0
        num_joins = int(parts.join.max(initial=-1)) + 1
        self.num_nodes = self.num_runs + num_joins
        join_of = parts.join + self.num_runs
        calls, waits = np.flatnonzero(events.kind == CALL), np.flatnonzero(events.kind == WAIT)
        follows = np.flatnonzero(events.rank[1:] == events.rank[:-1]) + 1
        follows = follows[run[follows] != run[follows - 1]]
        queued = np.flatnonzero(graph.previous >= 0)
        leads = graph.leads
        pairs = [(run[follows - 1], run[follows]), (join_of[events.part[waits]], run[waits]),
                 (run[calls], join_of[events.part[calls]]), (join_of[graph.previous[queued]], join_of[queued]),
                 (join_of[leads[:, 1]], leads[:, 0] + self.num_runs)]
        source, target = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
        order = np.argsort(source * self.num_nodes + target)
        self.targets = target[order]
        self.first = np.concatenate(([0], np.cumsum(np.bincount(source, minlength=self.num_nodes))))
        self.open = np.bincount(target, minlength=self.num_nodes)
        self.absent = np.ones(self.num_nodes, bool)
        self.absent[:self.num_runs] = False
        self.absent[join_of[events.part[calls]]] = False


def _rounds(needs: _Needs) -> tuple[Integers, Integers]:
    """Returns the round of each node (-1 if it is on or behind a cycle), and the joins that depend on themselves."""
    rounds, left = np.full(needs.num_nodes, -1, np.int64), needs.open.copy()
    ready, number = np.flatnonzero((left == 0) & ~needs.absent), 0
    while len(ready):
        # runs that are freed by runs of this round must not be in it, but joins may
        runs, joins = ready[ready < needs.num_runs], ready[ready >= needs.num_runs]
        rounds[runs] = number
        freed = _freed(needs, runs, left)
        now = np.concatenate((joins, freed[freed >= needs.num_runs]))
        rounds[now] = number
        ready = np.concatenate((freed[freed < needs.num_runs], _freed(needs, now, left)))
        number += 1
    return rounds, _circular(needs, (rounds < 0) & ~needs.absent)


def _circular(needs: _Needs, stuck: Flags) -> Integers:
    """Returns the joins on cycles (or between cycles), without what is merely behind a cycle."""
    source = np.repeat(np.arange(needs.num_nodes), np.diff(needs.first))
    while True:
        inside = stuck[source] & stuck[needs.targets]
        fewer = stuck & (np.bincount(source[inside], minlength=needs.num_nodes) > 0)
        if (fewer == stuck).all():
            return np.flatnonzero(stuck[needs.num_runs:])
        stuck = fewer


def _freed(needs: _Needs, nodes: Integers, left: Integers) -> Any:
    """Returns the nodes that now have all they need."""
    counts = needs.first[nodes + 1] - needs.first[nodes]
    within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    targets = needs.targets[np.repeat(needs.first[nodes], counts) + within]
    np.subtract.at(left, targets, 1)
    free = np.sort(targets[left[targets] == 0])
    return free[np.diff(free, prepend=-1) != 0]
