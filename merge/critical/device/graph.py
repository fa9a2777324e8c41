"""A graph of the commands of a rank and of the launches and waits of its host, for slack and replays.

A node is the end of a command, the moment at which a launch leaves the host, or the return of a call that waited for a
command. Each node comes some time after the last of its sources; a replay without changes gives the measured times.
Latest times are found backwards, as in the critical path method (Kelley and Walker, 1959).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from distprof.arrays import Array, Floats, Integers
from distprof.merge.activity.device.commands import Commands
from distprof.merge.critical.device.dependencies import EVENT, LAUNCH, STREAM, Dependencies

NEVER = 1 << 61
"""The latest time of nodes that may be arbitrarily late."""
HOST, OTHER, THIRD = range(3)
"""Columns of `DeviceGraph.sources`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceGraph:
    """Nodes are the ends of commands, their launches in the same order, and returns of waits; times in int64 ns."""

    at_ns: Integers
    took_ns: Integers
    """How long each command runs; 0 for other nodes."""
    sources: Integers
    """Nodes that each node waits for, or -1; shape (nodes, 3). For a command: its launch, the command before it in its
    stream, that of another stream. For the host: the node before it in its thread, the awaited command, -1."""
    after_ns: Integers
    """Time from each source to the node, without `took_ns`; shape (nodes, 3)."""
    order: Integers
    """A topological order of the nodes: sources come first."""

    @property
    def origin_ns(self) -> int:
        """Time of the first node."""
        return int(self.at_ns.min())

    def times(self, took_ns: Array, after_ns: Array) -> Floats:
        """Returns the time of each node with other durations, in ns since `origin_ns`; one without sources stays."""
        sources, after, took = self.sources.tolist(), after_ns.tolist(), took_ns.tolist()
        found = (self.at_ns - self.origin_ns).astype(float).tolist()  # floats cannot hold ns since the epoch exactly
        for node in self.order.tolist():
            ready = [found[one] + ns for one, ns in zip(sources[node], after[node], strict=True) if one >= 0]
            if ready:
                found[node] = max(ready) + took[node]
        return np.array(found)

    def latest(self, deadlines: Iterable[tuple[int, int]]) -> Integers:
        """Returns the latest time of each node; `NEVER` if no node with a deadline depends on it.

        Args:
            deadlines: Nodes and their latest times.
        """
        late, sources, after = [NEVER] * len(self.at_ns), self.sources.tolist(), self.after_ns.tolist()
        for node, ns in deadlines:
            late[node] = min(late[node], ns)
        took = self.took_ns.tolist()
        for node in self.order[::-1].tolist():
            begins = late[node] - took[node]
            if late[node] < NEVER:
                for one, ns in zip(sources[node], after[node], strict=True):
                    if one >= 0:
                        late[one] = min(late[one], begins - ns)
        return np.array(late, np.int64)


def device_graph(commands: Commands, found: Dependencies, *, cautious: bool = False) -> DeviceGraph:
    """Makes the graph of a measured timeline.

    Args:
        commands: Commands of a rank.
        found: Their dependencies.
        cautious: Whether streams also wait for what they were perhaps made to wait for, so that slack is never too
            large.
    """
    awaited = found.ordered if cautious else found.awaited
    number, waits = len(commands.start_ns), found.waits
    launches = number + np.arange(number)
    at = np.concatenate((commands.end_ns, found.issued_ns, waits.ended_ns))
    took = np.concatenate((commands.end_ns - commands.start_ns, np.zeros(len(at) - number, np.int64)))
    sources, after = (np.full((len(at), 3), value, np.int64) for value in (-1, 0))
    known = commands.call >= 0
    for place, kind, one, since in ((HOST, LAUNCH, np.where(known, launches, -1), found.issued_ns),
                                    (OTHER, STREAM, found.previous, commands.end_ns[found.previous]),
                                    (THIRD, EVENT, awaited, commands.end_ns[awaited])):
        gap = commands.start_ns - since
        sources[:number, place] = one
        after[:number, place] = np.where(found.bound == kind, gap, np.minimum(gap, found.usual_ns[kind]))
    before, did_ns = _on_hosts(commands, found)
    sources[number:, HOST], after[number:, HOST] = before, did_ns
    sources[2 * number:, OTHER], after[2 * number:, OTHER] = waits.command, waits.ended_ns - np.maximum(
        waits.over_ns, waits.began_ns)
    order = _in_order(at, number)
    rank = np.empty(len(at), np.int64)
    rank[order] = np.arange(len(at))
    sources[(sources >= 0) & (rank[sources] > rank[:, None])] = -1  # clocks of host and device differ
    return DeviceGraph(at_ns=at, took_ns=took, sources=sources, after_ns=after, order=order)


def _on_hosts(commands: Commands, found: Dependencies) -> tuple[Integers, Integers]:
    """Returns for each launch and wait the node before it in its thread, -1 for none, and the host's work in between,
    in ns."""
    number, waits, calls = len(commands.start_ns), found.waits, commands.calls
    thread = np.concatenate((np.append(calls.thread, -1)[commands.call], waits.thread))
    came = np.concatenate((found.issued_ns, np.where(waits.blocked, waits.began_ns, waits.ended_ns)))
    left = np.concatenate((found.issued_ns, waits.ended_ns))
    rows = np.flatnonzero(thread >= 0)
    rows = rows[np.lexsort((rows, left[rows], thread[rows]))]
    before, did_ns = (np.full(len(thread), value, np.int64) for value in (-1, 0))
    follows = thread[rows[1:]] == thread[rows[:-1]]
    mine, last = rows[1:][follows], rows[:-1][follows]
    before[mine], did_ns[mine] = number + last, np.maximum(came[mine] - left[last], 0)
    return before, did_ns


def _in_order(at: Integers, number: int) -> Integers:
    """Returns the nodes sorted by time; of equal times, launches, then commands in order of start, then waits."""
    node = np.arange(len(at))
    kind = np.where(node < number, 1, np.where(node < 2 * number, 0, 2))
    return np.lexsort((node, kind, at))
