"""Data dependencies: a call that reads a storage depends on the last writer, through views and in-place changes.

Dependencies between calls of a rank are pairs of places: the first depends on the second.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from distprof.arrays import Integers
from distprof.merge.execution.node_table import READS, WRITES
from distprof.merge.execution.rank_graph import RankGraph

Use = tuple[int, int, bool]
"""Number of the storage; `READS`, `WRITES` or both; whether it is on a device."""


class _Open(NamedTuple):
    """A call that has not ended."""

    place: int
    end_ns: int
    read: dict[int, int]
    """Storage -> the call that wrote it, for each storage that this call reads."""
    written: list[int]


def storage_dependencies(graph: RankGraph, uses: Mapping[int, Sequence[Use]]) -> tuple[Integers, Integers]:
    """Finds the data dependencies by going through the calls in order of start.

    A call depends on the last call that wrote what it reads and had ended when it began, including all calls inside
    that one. Dependencies that the enclosing call has too are omitted. On a device, the dependency is between the
    kernels of both; a call without kernels, such as a view, does not depend on the device.

    Args:
        graph: The calls; those without a node of an execution trace have no tensors.
        uses: By place, the uses that replace those of the node.
    """
    found, state = EdgeList(), _State(graph)
    kernels = _kernels(graph)
    host = np.flatnonzero(~graph.on_device)
    for place in host.tolist():
        around = state.advance(place)
        read: dict[int, int] = {}
        written: list[int] = []
        for storage, kind, on_device in uses[place] if place in uses else uses_at(graph, place):
            writer = state.writer.get(storage)
            if writer is not None and kind & READS:  # a storage that is only written has new data
                read[storage] = writer
                if around is None or around.read.get(storage) != writer:
                    _add(found, graph, kernels, (place, writer), on_device=on_device)
            if kind & WRITES:
                written.append(storage)
        state.begin(place, read, written)
    return found.arrays()


def uses_at(graph: RankGraph, place: int) -> Iterator[Use]:
    """Yields the storage uses of a call's node."""
    node, table = int(graph.node[place]), graph.table
    if node < 0 or table is None:
        return
    for at in range(int(table.use_begin[node]), int(table.use_begin[node + 1])):
        yield int(table.use_storage[at]), int(table.use_kind[at]), bool(table.use_on_device[at])


class _State:
    """The calls that are running on each thread, and the last writer of each storage."""

    def __init__(self, graph: RankGraph) -> None:
        self.writer: dict[int, int] = {}
        self._graph = graph
        self._threads: dict[int, list[_Open]] = {}

    def advance(self, place: int) -> _Open | None:
        """Ends the calls that have ended when this call begins; returns the enclosing call."""
        graph = self._graph
        own, start, parent = int(graph.thread[place]), int(graph.start_ns[place]), int(graph.parent[place])
        for thread, stack in self._threads.items():
            while stack and (stack[-1].place != parent if thread == own else stack[-1].end_ns <= start):
                ended = stack.pop()
                self.writer.update(dict.fromkeys(ended.written, ended.place))
        around = self._threads.get(own)
        return around[-1] if around else None

    def begin(self, place: int, read: dict[int, int], written: list[int]) -> None:
        """Adds a call that is running."""
        graph = self._graph
        end_ns = int(graph.start_ns[place] + graph.duration_ns[place])
        self._threads.setdefault(int(graph.thread[place]), []).append(_Open(place, end_ns, read, written))


def _kernels(graph: RankGraph) -> tuple[Integers, Integers]:
    """Returns the first and last kernel of each call, including calls inside it; -1 for none."""
    first, last = np.full(len(graph.name), -1, np.int64), np.full(len(graph.name), -1, np.int64)
    device = np.flatnonzero(graph.on_device)
    first[device] = last[device] = device
    for place in range(len(graph.name) - 1, -1, -1):
        above = graph.parent[place]
        if above >= 0 and first[place] >= 0:
            first[above] = first[place] if first[above] < 0 else min(first[above], first[place])
            last[above] = max(last[above], last[place])
    return first, last


def _add(found: EdgeList, graph: RankGraph, kernels: tuple[Integers, Integers], pair: tuple[int, int], *,
         on_device: bool) -> None:
    place, writer = pair
    first, last = kernels
    if on_device and last[writer] >= 0 and first[place] >= 0:
        found.add(int(first[place]), int(last[writer]))
    else:
        found.add(place, int(graph.inside_until[writer]))


class EdgeList:
    """A growing list of dependencies."""

    def __init__(self) -> None:
        self._later, self._earlier = array("q"), array("q")

    def add(self, later: int, earlier: int) -> None:
        """Adds the dependency of `later` on `earlier`."""
        self._later.append(later)
        self._earlier.append(earlier)

    def arrays(self) -> tuple[Integers, Integers]:
        """Returns both sides as arrays."""
        return np.array(self._later, np.int64), np.array(self._earlier, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edges:
    """Dependencies sorted by place."""

    begin: Integers
    """Start of each place's dependencies in `earlier`, and their total; one value more than places."""
    earlier: Integers
    """Places that are depended on; for each place ascending and without duplicates."""

    def of(self, place: int) -> list[int]:
        """Returns the places on which a place depends."""
        found: list[int] = self.earlier[self.begin[place]:self.begin[place + 1]].tolist()
        return found


def edges(num_places: int, parts: Iterable[tuple[Integers, Integers]]) -> Edges:
    """Merges dependencies; keeps only those on earlier places, so that there are no cycles."""
    later, earlier = (np.concatenate([np.empty(0, np.int64), *side]) for side in zip(*parts, strict=True))
    keep = (earlier >= 0) & (earlier < later)
    keys = np.unique(later[keep] * num_places + earlier[keep])
    later, earlier = keys // max(num_places, 1), keys % max(num_places, 1)
    return Edges(begin=np.searchsorted(later, np.arange(num_places + 1)), earlier=earlier)
