"""Waits for communication, devices and other threads: they take no time, and come after what they waited for.

A waiting thread does nothing. Its time belongs to what it waits for: if that becomes faster, the wait becomes shorter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from distprof.arrays import Integers
from distprof.contract.tables import WAIT_SLICE
from distprof.merge.execution.communication import WAITING, Communication, tensor_uses
from distprof.merge.execution.dependencies.order_dependencies import backwards, main_thread, waits_for_devices
from distprof.merge.execution.dependencies.storage_dependencies import storage_dependencies
from distprof.merge.execution.rank_graph import RankGraph

Stretch = tuple[int, int]
"""Start and end on the rank's clock."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A thread that was blocked by communication, a kernel or another thread; times on the rank's clock."""

    communication: int
    """Place of what it waited for; for another thread, the last call there."""
    place: int
    """Place of the call that waited; -1 if no call shows the wait."""
    thread: int
    start_ns: int
    end_ns: int


def waits_of(graph: RankGraph, found: Communication) -> list[Wait]:
    """Finds the waits for host communication (as recorded, else by tensors), for device work, and for autograd threads.

    Communication on a device does not block a thread.
    """
    noted = list(_recorded(graph, found))
    return [*noted, *_by_tensors(graph, found, {one.place for one in noted}), *_for_devices(graph),
            *_for_autograd(graph)]


def _for_devices(graph: RankGraph) -> Iterator[Wait]:
    slices, kernels = waits_for_devices(graph)
    for row, kernel in zip(slices.tolist(), kernels.tolist(), strict=True):
        assert graph.timeline is not None
        yield Wait(kernel, -1, int(graph.timeline.thread[row]), int(graph.timeline.start_ns[row]),
                   int(graph.timeline.end_ns[row]))


def _for_autograd(graph: RankGraph) -> Iterator[Wait]:
    """Yields waits of the main thread for backward passes on an autograd thread, as jobs with devices have them."""
    main = main_thread(graph)
    for first, last in backwards(graph):
        yield Wait(last, -1, main, int(graph.start_ns[first]), graph.end_ns(last))


def _recorded(graph: RankGraph, found: Communication) -> Iterator[Wait]:
    calls = _waiting_calls(graph)
    starts, ends = graph.start_ns[calls], graph.start_ns[calls] + graph.duration_ns[calls]
    rows = found.rows.select("wait_start_ns", "wait_end_ns").iter_rows()
    for place, issuer, (start_ns, end_ns) in zip(found.place.tolist(), found.issued_by.tolist(), rows, strict=True):
        if place < 0 or issuer < 0 or start_ns is None or end_ns is None or graph.on_device[place]:
            continue
        shared = np.minimum(ends, end_ns) - np.maximum(starts, start_ns)
        call = int(calls[np.argmax(shared)]) if len(calls) and 2 * shared.max() > end_ns - start_ns else -1
        if call >= 0:  # it does nothing else, even if the thread got no processor until the wait was recorded
            start_ns = min(start_ns, int(graph.start_ns[call]))
        yield Wait(place, call, int(graph.thread[call if call >= 0 else issuer]), start_ns, end_ns)


def _waiting_calls(graph: RankGraph) -> Integers:
    names = np.array([name in (*WAITING, WAIT_SLICE) for name in graph.names] or [False], bool)
    return np.flatnonzero(names[graph.name] & ~graph.on_device & (graph.slice >= 0))


def _by_tensors(graph: RankGraph, found: Communication, known: set[int]) -> list[Wait]:
    """Finds waiting calls that use the result of host communication."""
    calls = {place for place in _waiting_calls(graph).tolist() if place not in known}
    if not calls:
        return []
    host = {place for place in found.place.tolist() if place >= 0 and not graph.on_device[place]}
    pairs = zip(*(side.tolist() for side in storage_dependencies(graph, tensor_uses(graph, found))), strict=True)
    return [Wait(earlier, place, int(graph.thread[place]), int(graph.start_ns[place]), graph.end_ns(place))
            for place, earlier in pairs if place in calls and earlier in host]


def with_bounds(graph: RankGraph, found: Communication, waits: Sequence[Wait]) -> RankGraph:
    """Sets the bounds of host communication: from the end of its operator until a thread that waited for it continues.

    It begins earlier if it was recorded so. If a backend begins later although its thread is idle, this is latency and
    counts as communication.
    """
    start, duration, own, inside = graph.start_ns.copy(), graph.duration_ns.copy(), graph.self_ns.copy(), graph.inside()
    went_on = dict[int, int]()  # also if it had ended before
    for one in waits:
        went_on[one.communication] = min(one.end_ns, went_on.get(one.communication, one.end_ns))
    free = dict[int, int]()
    host = [(place, issuer) for place, issuer in zip(found.place.tolist(), found.issued_by.tolist(), strict=True)
            if place >= 0 and not graph.on_device[place] and duration[place]]
    for place, issuer in sorted(host):
        end_ns, thread = graph.end_ns(place), int(graph.thread[place])
        calls = inside.get(place, [(end_ns, end_ns)])
        until = min(went_on.get(place, end_ns), end_ns)
        if place in inside:
            until = max(until, *(end for _, end in calls))
        if issuer >= 0:
            start[place] = min(max(graph.end_ns(issuer), free.get(thread, 0)), int(start[place]))
        duration[place] = max(until - int(start[place]), 1)
        own[place] = duration[place] - sum(end - begin for begin, end in calls)
        free[thread] = int(start[place] + duration[place])
    return replace(graph, start_ns=start, duration_ns=duration, self_ns=own)


def stood_still(graph: RankGraph, waits: Sequence[Wait]) -> Mapping[int, list[Stretch]]:
    """Returns call -> the stretches in which it waited itself, outside of the calls inside it."""
    inside = graph.inside()
    found: dict[int, list[Stretch]] = defaultdict(list)
    for thread in sorted({one.thread for one in waits}):
        calls = np.flatnonzero(graph.thread == thread)
        for start_ns, end_ns in together((one.start_ns, min(one.end_ns, graph.end_ns(one.communication)))
                                         for one in waits if one.thread == thread):
            ends = graph.start_ns[calls] + graph.duration_ns[calls]
            for place in calls[(graph.start_ns[calls] < end_ns) & (ends > start_ns)].tolist():
                within = max(start_ns, int(graph.start_ns[place])), min(end_ns, graph.end_ns(place))
                found[place] += between(within, inside.get(place, ()))
    return found


def together(stretches: Iterable[Stretch]) -> list[Stretch]:
    """Sorts stretches and joins those that overlap; drops those without duration."""
    found = list[Stretch]()
    for start, end in sorted(stretches):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        elif end > start:
            found.append((start, end))
    return found


def between(whole: Stretch, parts: Iterable[Stretch]) -> list[Stretch]:
    """Returns what is left of a stretch without its parts."""
    found, at = list[Stretch](), whole[0]
    for start, end in [*together(parts), (whole[1], whole[1])]:
        if min(start, whole[1]) > at:
            found.append((at, min(start, whole[1])))
        at = max(at, end)
    return found
