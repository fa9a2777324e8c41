"""Dependencies by the order of threads and streams, by launches, and by calls that wait for a device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from distprof.arrays import Flags, Integers
from distprof.merge.activity.device.commands import synchronises
from distprof.merge.activity.markers import AUTOGRAD
from distprof.merge.execution.dependencies.stream_waits import Awaited, awaited
from distprof.merge.execution.rank_graph import RankGraph
from distprof.merge.operators.timeline.rank_timeline import RUNTIME

PAUSE_NS = 1_000_000
"""A pause of an autograd thread of at least this length ends a backward pass."""
MAIN = 0.1
"""A thread is preferred to autograd and backend threads as main thread if it has at least this fraction of the busiest
thread's calls."""
BACKENDS = ("gloo:", "nccl:")
"""Prefixes of the names of backends' work."""


def order_dependencies(graph: RankGraph) -> Iterator[tuple[Any, Any]]:
    """Yields dependencies as pairs of places (later, earlier), one pair of arrays per kind."""
    yield _in_turn(graph)
    yield _first_of_threads(graph)
    device = np.flatnonzero(graph.on_device)
    yield device, graph.parent[device]
    yield _backward(graph)
    known = _awaited(graph)
    if known is not None:
        kernel, first = (_places(graph)[rows] for rows in (known.kernel, known.waiting))
        yield first[first >= 0], kernel[first >= 0]


def _in_turn(graph: RankGraph) -> tuple[Integers, Integers]:
    """Each call depends on the previous one of its thread, each kernel on the previous one of its stream.

    A backend's own operators that run while it communicates do not depend on its work; the calls after the work do.
    """
    order = np.lexsort((np.arange(len(graph.name)), graph.thread))
    same = np.flatnonzero(graph.thread[order][1:] == graph.thread[order][:-1])
    later, before, behind = order[same + 1], order[same], list[tuple[int, int]]()
    ends, is_backend = graph.start_ns + graph.duration_ns, named(graph, BACKENDS)[graph.name] & ~graph.on_device
    for pair in np.flatnonzero(is_backend[before] & (graph.start_ns[later] < ends[before])).tolist():
        work, at = int(before[pair]), pair
        before[pair] = before[pair - 1] if pair and later[pair - 1] == work else -1
        while at < len(later) and graph.thread[later[at]] == graph.thread[work]:
            if graph.start_ns[later[at]] >= ends[work]:
                behind.append((int(later[at]), work))
                break
            at += 1
    more = np.array(behind, np.int64).reshape(-1, 2)
    return np.append(later, more[:, 0]), np.append(before, more[:, 1])


def _first_of_threads(graph: RankGraph) -> tuple[Integers, Integers]:
    """The first call of a thread, and of each backward pass, depends on the main thread's last call that had ended.

    On other threads, the work of a backend depends only on the operator that issued it.
    """
    host = np.flatnonzero(~graph.on_device)
    if not len(host):
        return host, host
    first = host[np.unique(graph.thread[host], return_index=True)[1]]
    begins = np.union1d(first[~named(graph, BACKENDS)[graph.name[first]]], [one for one, _ in backwards(graph)])
    begins = begins.astype(np.int64)
    main = host[graph.thread[host] == main_thread(graph)]
    ends = graph.start_ns[main] + graph.self_ns[main]
    # calls that were still running do not count
    over = [np.flatnonzero(ends[:stop] <= graph.start_ns[one])[-1:] for one, stop in zip(
        begins.tolist(), np.searchsorted(main, begins).tolist(), strict=True)]
    return begins, np.array([main[last[0]] if len(last) else -1 for last in over], np.int64)


def main_thread(graph: RankGraph) -> int:
    """Returns the host thread with the most calls; -1 if there is none.

    With devices, the backward pass runs on an autograd thread; this is not the main thread, even if it has more calls.
    """
    host = np.flatnonzero(~graph.on_device)
    threads, first, count = np.unique(graph.thread[host], return_index=True, return_counts=True)
    if not len(threads):
        return -1
    apart = np.isin(threads, graph.thread[host[named(graph, (AUTOGRAD,))[graph.name[host]]]])
    apart |= named(graph, BACKENDS)[graph.name[host[first]]]
    own = np.where(apart, 0, count)
    return int(threads[np.argmax(own if own.max() >= MAIN * count.max() else count)])


def backwards(graph: RankGraph) -> list[tuple[int, int]]:
    """Returns the first and last call of each backward pass that runs on an autograd thread."""
    nodes = np.flatnonzero(named(graph, (AUTOGRAD,))[graph.name] & ~graph.on_device)
    found = list[tuple[int, int]]()
    for thread in sorted({*graph.thread[nodes].tolist()} - {main_thread(graph)}):
        calls = np.flatnonzero((graph.thread == thread) & (graph.parent < 0))
        ends = graph.start_ns[calls] + graph.duration_ns[calls]
        pauses = np.flatnonzero(graph.start_ns[calls][1:] - ends[:-1] >= PAUSE_NS)
        found += zip(calls[np.append(0, pauses + 1)].tolist(), calls[np.append(pauses, len(calls) - 1)].tolist(),
                     strict=True)
    return found


def named(graph: RankGraph, prefixes: Sequence[str]) -> Flags:
    """Returns, by index into `names`, whether a name has one of these prefixes."""
    return np.array([name.startswith(tuple(prefixes)) for name in graph.names] or [False], bool)


def _backward(graph: RankGraph) -> tuple[Integers, Integers]:
    """An autograd function depends on the forward call that created it."""
    if graph.table is None:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    place = np.full(len(graph.table.id), -1, np.int64)
    rows = np.flatnonzero(graph.node >= 0)
    place[graph.node[rows]] = rows
    forward = graph.table.forward[graph.node[rows]]
    made_by = np.where(forward >= 0, place[forward], -1)
    is_over = (graph.start_ns + graph.duration_ns)[made_by] <= graph.start_ns[rows]
    return rows, np.where((made_by >= 0) & is_over, graph.inside_until[made_by], made_by)


def _awaited(graph: RankGraph) -> Awaited | None:
    return awaited(graph.timeline, graph.stream_waits) if graph.timeline and graph.stream_waits else None


def _places(graph: RankGraph) -> Integers:
    """Returns the place of each slice; -1 for slices without a place, and at the end, for slice -1."""
    assert graph.timeline is not None
    place = np.full(len(graph.timeline.name) + 1, -1, np.int64)
    rows = np.flatnonzero(graph.slice >= 0)
    place[graph.slice[rows]] = rows
    return place


def waits_for_devices(graph: RankGraph) -> tuple[Integers, Integers]:
    """Returns slices in which a thread waits for a device, and the kernel that each waits for.

    This is the kernel that an event marks, else the last one that ended during the wait.
    """
    timeline, known = graph.timeline, _awaited(graph)
    kernels = np.flatnonzero(graph.on_device)
    if timeline is None or not len(kernels):
        return kernels[:0], kernels[:0]
    names = [number for number, name in enumerate(timeline.names) if synchronises(name)]
    calls = np.flatnonzero((timeline.type == RUNTIME) & np.isin(timeline.name, names))
    calls = calls[~np.isin(calls, known.call)] if known is not None else calls
    ends = (graph.start_ns + graph.duration_ns)[kernels]
    order = np.argsort(ends, kind="stable")
    last = np.searchsorted(ends[order], timeline.end_ns[calls], "right") - 1
    within = (last >= 0) & (ends[order][np.maximum(last, 0)] >= timeline.start_ns[calls])
    found = calls[within], kernels[order][last[within]]
    if known is None:
        return found
    marked = _places(graph)[known.kernel]
    some = known.of_thread & (marked >= 0)
    return np.concatenate((found[0], known.call[some])), np.concatenate((found[1], marked[some]))


def next_of_thread(graph: RankGraph, thread: Integers, at_ns: Integers) -> Integers:
    """Returns the place of the first call that each thread begins at or after the given time; -1 for none."""
    found = np.full(len(at_ns), -1, np.int64)
    for one in np.unique(thread):
        places = np.flatnonzero(graph.thread == one)
        wanted = np.flatnonzero(thread == one)
        at = np.searchsorted(graph.start_ns[places], at_ns[wanted])
        found[wanted] = np.where(at < len(places), np.append(places, -1)[at], -1)
    return found
