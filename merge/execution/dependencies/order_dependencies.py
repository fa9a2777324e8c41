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
    known = awaited(graph.timeline, graph.stream_waits) if graph.timeline and graph.stream_waits else None
    if known is not None:
        yield from _of_events(graph, known)
    yield _synchronized(graph, known)


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


def _of_events(graph: RankGraph, known: Awaited) -> Iterator[tuple[Any, Any]]:
    """The first kernel behind a wait of its stream, and the next call of a thread that waited, after the kernel that
    the event marks."""
    assert graph.timeline is not None
    place = np.full(len(graph.timeline.name) + 1, -1, np.int64)  # the last one is for no row
    rows = np.flatnonzero(graph.slice >= 0)
    place[graph.slice[rows]] = rows
    kernel, first = place[known.kernel], place[known.waiting]
    yield first[first >= 0], kernel[first >= 0]
    calls, marked = known.call[known.of_thread], kernel[known.of_thread]
    yield next_of_thread(graph, graph.timeline.thread[calls], graph.timeline.end_ns[calls]), marked


def _synchronized(graph: RankGraph, known: Awaited | None) -> tuple[Any, Any]:
    """The next call of a thread after the kernel that ended last while the thread waited for the device.

    Waits for events that are known are not looked at.
    """
    timeline = graph.timeline
    waits = np.empty(0, np.int64)
    if timeline is not None:
        names = [number for number, name in enumerate(timeline.names) if name.startswith(SYNCHRONIZING)]
        waits = np.flatnonzero((timeline.type == RUNTIME) & np.isin(timeline.name, names))
        waits = waits[~np.isin(waits, known.call)] if known is not None else waits
    kernels = np.flatnonzero(graph.on_device)
    if timeline is None or not len(waits) or not len(kernels):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    ends = (graph.start_ns + graph.duration_ns)[kernels]
    order = np.argsort(ends, kind="stable")
    last = np.searchsorted(ends[order], timeline.end_ns[waits], "right") - 1
    within = (last >= 0) & (ends[order][np.maximum(last, 0)] >= timeline.start_ns[waits])
    kernel = np.where(within, kernels[order][np.maximum(last, 0)], -1)
    return next_of_thread(graph, timeline.thread[waits], timeline.end_ns[waits]), kernel


def next_of_thread(graph: RankGraph, thread: Any, at_ns: Any) -> Any:
    """Place of the first call that each of these threads begins at a time or later; -1 for none."""
    found = np.full(len(at_ns), -1, np.int64)
    for one in np.unique(thread):
        places = np.flatnonzero(graph.thread == one)
        wanted = np.flatnonzero(thread == one)
        at = np.searchsorted(graph.start_ns[places], at_ns[wanted])
        found[wanted] = np.where(at < len(places), np.append(places, -1)[at], -1)
    return found
