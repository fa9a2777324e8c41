"""Who has to wait for whom by the order of threads and streams, by launches, and by calls that wait for a device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from distprof.merge.execution.dependencies.stream_waits import Awaited, awaited
from distprof.merge.execution.rank_graph import RankGraph
from distprof.merge.operators.timeline.rank_timeline import RUNTIME

BACKENDS = ("gloo:", "nccl:")
"""How names of the work of backends begin."""
SYNCHRONIZING = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cuStreamSynchronize",
                 "cuCtxSynchronize", "cuEventSynchronize", "hipStreamSynchronize", "hipDeviceSynchronize",
                 "hipEventSynchronize", "cudaMemcpy", "hipMemcpy")
"""Calls of the runtime that return when a device has come so far."""


def order_dependencies(graph: RankGraph) -> Iterator[tuple[Any, Any]]:
    """Pairs of places by their reason."""
    yield _in_turn(graph)
    yield _first_of_threads(graph)
    device = np.flatnonzero(graph.on_device)
    yield device, graph.parent[device]
    yield _backward(graph)
    known = _awaited(graph)
    if known is not None:
        kernel, first = (_places(graph)[rows] for rows in (known.kernel, known.waiting))
        yield first[first >= 0], kernel[first >= 0]


def _in_turn(graph: RankGraph) -> tuple[Any, Any]:
    """Each call after the one before it on its thread, each kernel after the one before it on its stream."""
    order = np.lexsort((np.arange(len(graph.name)), graph.thread))
    same = np.flatnonzero(graph.thread[order][1:] == graph.thread[order][:-1])
    return order[same + 1], order[same]


def _first_of_threads(graph: RankGraph) -> tuple[Any, Any]:
    """The first call of a thread after the last one that had begun on the thread with most calls.

    The work of a backend comes after what issued it, and after nothing else on other threads.
    """
    host = np.flatnonzero(~graph.on_device)
    if not len(host):
        return host, host
    threads, first, count = np.unique(graph.thread[host], return_index=True, return_counts=True)
    main = host[graph.thread[host] == threads[np.argmax(count)]]
    begins = host[first]
    begins = begins[~named(graph, BACKENDS)[graph.name[begins]]]
    place = np.searchsorted(main, begins) - 1
    return begins, np.where(place >= 0, main[np.maximum(place, 0)], -1)


def named(graph: RankGraph, prefixes: Sequence[str]) -> Any:
    """By number of a name, whether it begins so."""
    return np.array([name.startswith(tuple(prefixes)) for name in graph.names] or [False], bool)


def _backward(graph: RankGraph) -> tuple[Any, Any]:
    """A function of autograd after the forward call that made it."""
    if graph.table is None:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    place = np.full(len(graph.table.id), -1, np.int64)
    rows = np.flatnonzero(graph.node >= 0)
    place[graph.node[rows]] = rows
    forward = graph.table.forward[graph.node[rows]]
    made_by = np.where(forward >= 0, place[forward], -1)
    return rows, np.where(made_by >= 0, graph.inside_until[made_by], -1)


def _awaited(graph: RankGraph) -> Awaited | None:
    return awaited(graph.timeline, graph.stream_waits) if graph.timeline and graph.stream_waits else None


def _places(graph: RankGraph) -> Any:
    """Place of each slice; -1 for what has none, and for no slice."""
    assert graph.timeline is not None
    place = np.full(len(graph.timeline.name) + 1, -1, np.int64)
    rows = np.flatnonzero(graph.slice >= 0)
    place[graph.slice[rows]] = rows
    return place


def waits_for_devices(graph: RankGraph) -> tuple[Any, Any]:
    """Slices in which a thread waits for a device, and the kernel that each waits for.

    That is the one that an event marks, else the one that ended last meanwhile.
    """
    timeline, known = graph.timeline, _awaited(graph)
    kernels = np.flatnonzero(graph.on_device)
    if timeline is None or not len(kernels):
        return kernels[:0], kernels[:0]
    names = [number for number, name in enumerate(timeline.names) if name.startswith(SYNCHRONIZING)]
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


def next_of_thread(graph: RankGraph, thread: Any, at_ns: Any) -> Any:
    """Place of the first call that each of these threads begins at a time or later; -1 for none."""
    found = np.full(len(at_ns), -1, np.int64)
    for one in np.unique(thread):
        places = np.flatnonzero(graph.thread == one)
        wanted = np.flatnonzero(thread == one)
        at = np.searchsorted(graph.start_ns[places], at_ns[wanted])
        found[wanted] = np.where(at < len(places), np.append(places, -1)[at], -1)
    return found
