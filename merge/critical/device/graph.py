"""Commands of a rank, and launches and waits of its host, as a graph: how late each may be, and a replay.

A node is the end of a command, the moment at which the launch of a command leaves the host, or the return of a call
that waited for a command. Each comes when the last of those in front of it is over, some time later; a replay without
changes gives the times that were measured. Latest times are found backwards, as in the critical path method (Kelley and
Walker, 1959).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from distprof.arrays import Array, Floats, Integers
from distprof.merge.activity.device.commands import Commands
from distprof.merge.critical.device.dependencies import EVENT, LAUNCH, STREAM, Dependencies

NEVER = 1 << 61
"""Instants that may be as late as one likes."""
HOST, OTHER, THIRD = range(3)
"""Places of sources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceGraph:
    """Nodes: ends of commands, their launches in the same order, returns of waits; times in int64 ns."""

    at_ns: Integers
    took_ns: Integers
    """How long each command runs; 0 for the others."""
    sources: Integers
    """What each node waits for, nodes or -1; shape (nodes, 3). Of a command: its launch, the command in front of it in
    its stream, that of another stream. Of the host: what its thread did before, the command that it waited for, -1."""
    after_ns: Integers
    """How much later than each source it comes, without `took_ns`."""
    order: Integers
    """Nodes such that none comes in front of its sources."""

    @property
    def origin_ns(self) -> int:
        """When the first node is."""
        return int(self.at_ns.min())

    def times(self, took_ns: Array, after_ns: Array) -> Floats:
        """When each node would have been with other times, ns since the first; one without a source stays there."""
        sources, after, took = self.sources.tolist(), after_ns.tolist(), took_ns.tolist()
        found = (self.at_ns - self.origin_ns).astype(float).tolist()  # times of clocks are too long for floats
        for node in self.order.tolist():
            ready = [found[one] + ns for one, ns in zip(sources[node], after[node], strict=True) if one >= 0]
            if ready:
                found[node] = max(ready) + took[node]
        return np.array(found)

    def latest(self, deadlines: Iterable[tuple[int, int]]) -> Integers:
        """How late each node may be; `NEVER` where nothing that has a deadline waits for it.

        Args:
            deadlines: Nodes, and how late these may be at most.
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
    """The graph of what was measured.

    Args:
        commands: Of a rank.
        found: What they waited for.
        cautious: Streams also wait for what they were perhaps made to wait for: slack is then never too large.
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
    sources[(sources >= 0) & (rank[sources] > rank[:, None])] = -1  # of clocks that differ
    return DeviceGraph(at_ns=at, took_ns=took, sources=sources, after_ns=after, order=order)


def _on_hosts(commands: Commands, found: Dependencies) -> tuple[Integers, Integers]:
    """Of each launch and each wait, the node of its thread in front of it, -1 for none, and what was done between."""
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
    """Nodes by time; at the same time launches, then commands as they begin, then waits."""
    node = np.arange(len(at))
    kind = np.where(node < number, 1, np.where(node < 2 * number, 0, 2))
    return np.lexsort((node, kind, at))
