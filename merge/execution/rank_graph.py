"""What ran on a rank: calls of its execution trace with the times of their slices, and the work of its devices.

Calls come from the execution trace, or from the timeline if there is none. Host slices within the execution trace's
time that it lacks are calls too, so that no time is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distprof.arrays import Flags, Integers
from distprof.errors import DataError
from distprof.merge.execution.dependencies.stream_waits import StreamWaits
from distprof.merge.execution.linking import Links, is_call, linked
from distprof.merge.execution.node_table import NodeTable
from distprof.merge.operators.timeline.device_times import launchers
from distprof.merge.operators.timeline.nesting import Nesting
from distprof.merge.operators.timeline.rank_timeline import NUM_HOST, OPERATOR, RUNTIME, RankTimeline

DEVICE_THREADS = 1 << 32
"""Offset of thread numbers: streams of devices begin here, threads of nodes without a slice at twice this number, and
those of messages at three times it."""
COMMUNICATION_THREADS = 4 * DEVICE_THREADS
"""From here on, each operation that no slice shows has a thread number of its own."""
PLACES = ("name", "type", "start_ns", "duration_ns", "self_ns", "thread", "parent", "node", "slice", "inside_until")
"""Names of the graph's arrays that have one value per place."""
MESSAGES = ("gloo:send", "gloo:recv")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGraph:
    """Calls and kernels of a rank in order of start; a place is an index into the arrays."""

    name: Integers
    """Index into `names`."""
    names: Sequence[str]
    type: Integers
    """Index into `rank_timeline.TYPES`."""
    start_ns: Integers
    """On the rank's clock; a call without a slice has that of the call before it; 0 without a timeline."""
    duration_ns: Integers
    """0 if unknown."""
    self_ns: Integers
    """Duration excluding the calls inside."""
    thread: Integers
    parent: Integers
    """Place of the enclosing call, or of a kernel's launching call; -1 for none."""
    node: Integers
    """Row of the execution trace; -1 for none."""
    slice: Integers
    """Row of the timeline; -1 for none."""
    inside_until: Integers
    """Place of the last host call inside it; its own place if there is none."""
    table: NodeTable | None
    timeline: RankTimeline | None
    links: Links | None
    stream_waits: StreamWaits | None = None
    """None without a timeline."""

    @property
    def on_device(self) -> Flags:
        """True for kernels, copies and fills."""
        return self.type >= NUM_HOST

    def end_ns(self, place: int) -> int:
        """Returns when the call at a place ended."""
        return int(self.start_ns[place] + self.duration_ns[place])

    def inside(self) -> dict[int, list[tuple[int, int]]]:
        """Returns host call -> start and end of the calls directly inside it."""
        found = dict[int, list[tuple[int, int]]]()
        for place in np.flatnonzero((self.parent >= 0) & ~self.on_device).tolist():
            found.setdefault(int(self.parent[place]), []).append((int(self.start_ns[place]), self.end_ns(place)))
        return found

    def with_insides(self) -> RankGraph:
        """Returns the graph with `inside_until` recomputed from the parents."""
        return replace(self, inside_until=_inside_until(self.parent, self.type))


def rank_graph(table: NodeTable | None, timeline: RankTimeline | None,
               window: tuple[int, int] | None = None) -> RankGraph:
    """Joins an execution trace and a timeline of the same rank; one of them may be missing.

    Args:
        table: The execution trace.
        timeline: The timeline, which may have more steps.
        window: Start and end of the part of the timeline to use, on the rank's clock; None: the time of the execution
            trace's calls, or everything without an execution trace.

    Raises:
        DataError: There are no calls.
    """
    links = linked(table, timeline) if table is not None else None
    if timeline is None or (links is not None and not links.num_linked):
        assert table is not None
        return _untimed(table, timeline, links)
    if links is not None and window is None:
        window = _window(timeline, links)
    launcher = _launchers(timeline)
    slices = _slices(timeline, launcher, window)
    if not len(slices):
        raise DataError("no calls in the timeline of the step")
    return _joined(timeline, slices, launcher, table, links)


def _window(timeline: RankTimeline, links: Links) -> tuple[int, int]:
    rows = links.slice[links.slice >= 0]
    return int(timeline.start_ns[rows].min()), int(timeline.end_ns[rows].max()) + 1


def _launchers(timeline: RankTimeline) -> Integers:
    nesting = Nesting(timeline.thread, timeline.start_ns, timeline.end_ns, held=timeline.type < NUM_HOST)
    found = launchers(timeline, nesting)
    runtime = (found >= 0) & (timeline.type[found] == RUNTIME)  # launched outside of all operators
    around = np.where(runtime, nesting.parent[found], found)
    return np.where((around >= 0) & (timeline.type[around] == RUNTIME), -1, around)


def _slices(timeline: RankTimeline, launcher: Integers, window: tuple[int, int] | None) -> Integers:
    """Returns the rows of operators and annotations that begin in the window, and of what was launched in it."""
    wanted = timeline.type != RUNTIME
    if window is not None:
        begin = np.where(launcher >= 0, timeline.start_ns[launcher], timeline.start_ns)
        wanted &= (begin >= window[0]) & (begin < window[1])
    return np.flatnonzero(wanted)


def _joined(timeline: RankTimeline, slices: Integers, launcher: Integers, table: NodeTable | None,
            links: Links | None) -> RankGraph:
    node_of = np.full(len(timeline.name), -1, np.int64)
    if links is not None:
        rows = np.flatnonzero(links.slice >= 0)
        node_of[links.slice[rows]] = rows
    columns, names = _of_slices(timeline, slices, node_of), list(timeline.names)
    columns["thread"] = _apart(columns["name"], columns["thread"], names)
    if table is not None and links is not None:
        own = _of_nodes(timeline, slices, table, links, names)
        columns = {name: np.concatenate((columns[name], own[name])) for name in columns}
    order = np.lexsort((columns["node"], columns["thread"], -columns["duration_ns"], columns["start_ns"]))
    columns = {name: values[order].astype(np.int64) for name, values in columns.items()}
    return _nested(columns, names, timeline, launcher, table, links)


def _of_slices(timeline: RankTimeline, slices: Integers, node_of: Integers) -> dict[str, Integers]:
    """Returns the columns of calls and kernels that have a slice."""
    on_host = timeline.type[slices] < NUM_HOST
    return {
        "start_ns": timeline.start_ns[slices], "duration_ns": timeline.duration_ns[slices],
        "thread": np.where(on_host, timeline.thread[slices], DEVICE_THREADS + timeline.thread[slices]),
        "type": timeline.type[slices], "name": timeline.name[slices], "node": node_of[slices], "slice": slices}


def _apart(name: Integers, thread: Integers, names: Sequence[str]) -> Integers:
    """Returns the threads, with one of its own for each gloo send or receive: its slice stays open on the thread of its
    call until the message has left or arrived, whatever the thread does meanwhile."""
    messages = np.isin(name, [number for number, text in enumerate(names) if text in MESSAGES])
    return np.where(messages, 3 * DEVICE_THREADS + np.arange(len(thread)), thread)


def _of_nodes(timeline: RankTimeline, slices: Integers, table: NodeTable, links: Links,
              names: list[str]) -> dict[str, Integers]:
    """Returns the columns of calls without a slice, which start with the call before them; appends their names."""
    alone = np.flatnonzero(is_call(table) & (links.slice < 0))
    if len(alone):
        known = set(names)  # a name may repeat, because JSON can spell it in several ways
        names += [name for name in table.names if name not in known]
        number = {name: place for place, name in enumerate(names)}
        own = np.array([number[name] for name in table.names], np.int64)[table.name[alone]]
    else:
        own = alone
    before = _before(links.slice, alone)
    return {
        "start_ns": np.where(before >= 0, timeline.start_ns[before], timeline.start_ns[slices].min()),
        "duration_ns": np.zeros(len(alone), np.int64), "thread": 2 * DEVICE_THREADS + table.thread[alone],
        "type": np.full(len(alone), OPERATOR), "name": own, "node": alone, "slice": np.full(len(alone), -1)}


def _before(slices: Integers, rows: Integers) -> Integers:
    """Returns the slice of the last node before each of these rows that has one; -1 for none."""
    last = np.maximum.accumulate(np.where(slices >= 0, np.arange(len(slices)), -1))
    return np.where(last[rows] >= 0, slices[np.maximum(last[rows], 0)], -1)


def _nested(columns: dict[str, Any], names: Sequence[str], timeline: RankTimeline, launcher: Integers,
            table: NodeTable | None, links: Links | None) -> RankGraph:
    start, duration, slices = columns["start_ns"], columns["duration_ns"], columns["slice"]
    timed_on_host = (slices >= 0) & (columns["type"] < NUM_HOST)
    by_thread = np.lexsort((np.arange(len(start)), columns["thread"]))
    nesting = Nesting(columns["thread"][by_thread], start[by_thread], (start + duration)[by_thread],
                      held=timed_on_host[by_thread])
    parent = np.full(len(start), -1, np.int64)
    parent[by_thread] = np.where(nesting.parent >= 0, by_thread[nesting.parent], -1)
    self_ns = np.empty(len(start), np.int64)
    self_ns[by_thread] = np.maximum(nesting.without_inner(duration[by_thread]), 0)
    place_of = np.full(len(timeline.name), -1, np.int64)
    place_of[slices[slices >= 0]] = np.flatnonzero(slices >= 0)
    device = np.flatnonzero(columns["type"] >= NUM_HOST)
    by = launcher[slices[device]]
    parent[device] = np.where(by >= 0, place_of[by], -1)
    self_ns[device] = duration[device]
    return RankGraph(**columns, names=names, self_ns=self_ns, parent=_earlier(parent),
                     inside_until=_inside_until(parent, columns["type"]), table=table, timeline=timeline, links=links)


def _earlier(parent: Integers) -> Integers:
    """Keeps parents that began earlier; with different clocks, a kernel may seem to begin before its launch."""
    return np.where(parent < np.arange(len(parent)), parent, -1)


def _inside_until(parent: Integers, kind: Integers) -> Integers:
    found = np.arange(len(parent))
    for place in range(len(parent) - 1, -1, -1):
        above = parent[place]
        if above >= 0 and kind[place] < NUM_HOST and found[place] > found[above]:
            found[above] = found[place]
    return found


def _untimed(table: NodeTable, timeline: RankTimeline | None, links: Links | None) -> RankGraph:
    rows = np.flatnonzero(is_call(table))
    if not len(rows):
        raise DataError(f"no calls in {table.file.trace.name}")
    place = np.full(len(table.id), -1, np.int64)
    place[rows] = np.arange(len(rows))
    above = table.parent[rows]
    parent = _earlier(np.where(above >= 0, place[above], -1))
    nothing, kind = np.zeros(len(rows), np.int64), np.full(len(rows), OPERATOR)
    return RankGraph(
        name=table.name[rows], names=table.names, type=kind, start_ns=nothing, duration_ns=nothing, self_ns=nothing,
        thread=table.thread[rows], parent=parent, node=rows, slice=np.full(len(rows), -1), table=table,
        inside_until=_inside_until(parent, kind), timeline=timeline, links=links)
