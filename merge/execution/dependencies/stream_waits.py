"""Waits of streams and threads for device events, from the `cuda_sync` slices of torch.profiler.

The profiler records these slices only if asked to (`enable_cuda_sync_events`). Calls of `cudaStreamWaitEvent` alone
show neither the waiting stream nor the event.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from distprof.arrays import Flags, Integers
from distprof.merge.execution.linking import STREAM
from distprof.merge.operators.timeline.device_times import joined
from distprof.merge.operators.timeline.rank_timeline import NUM_HOST, RUNTIME, RankTimeline
from distprof.merge.scan.engine import Scanner
from distprof.merge.scan.scanned_columns import NONE

DEVICE = "device"
"""Key of `args` of kernels and waits: the number of the device."""
RECORDED, RECORDED_ON = "wait_on_cuda_event_record_corr_id", "wait_on_stream"
"""Keys of `args` of a wait: the correlation id of the call that recorded the event, and the stream it recorded on."""
STREAM_WAITS, THREAD_WAITS = b"Stream Wait Event", b"Event Sync"
CALLS = ("cudaStreamWaitEvent", "hipStreamWaitEvent")
COLUMNS = ("correlation", STREAM, DEVICE, RECORDED, RECORDED_ON)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamWaits:
    """Waits whose event is known; each array has one value per wait."""

    of_stream: Flags
    """True if a stream waits, False if a thread does."""
    correlation: Integers
    """Correlation id of the call that made it wait."""
    stream: Integers
    """The waiting stream."""
    device: Integers
    """The device of both streams: Kineto finds only events that were recorded in the context of the wait."""
    recorded: Integers
    """Correlation id of the call that recorded the event."""
    recorded_on: Integers
    """The stream on which the event was recorded."""


class StreamWaitEvents:
    """Collects waits while a timeline is read; the reader must also read `stream` and `device` of slices."""

    keys = (RECORDED, RECORDED_ON)

    def __init__(self) -> None:
        self._parts = [np.empty((1 + len(COLUMNS), 0), np.int64)]
        self._known = 0
        self._numbers = dict.fromkeys((THREAD_WAITS, STREAM_WAITS), -1)

    def take(self, scanner: Scanner) -> None:
        """Adds the waits of the last scan."""
        new = scanner.names.texts(self._known)
        for text in self._numbers:
            if text in new:
                self._numbers[text] = self._known + new.index(text)
        self._known += len(new)
        name = scanner.column("name")
        rows = [np.flatnonzero(name == number) for number in self._numbers.values()]
        chosen = np.concatenate(rows)
        if not len(chosen):
            return
        kind = np.repeat(np.arange(2), [len(part) for part in rows])
        self._parts.append(np.stack([kind, *(scanner.integers[key][chosen].astype(np.int64) for key in COLUMNS)]))

    def found(self) -> StreamWaits:
        """Returns the waits whose event is known."""
        kind, correlation, stream, device, recorded, recorded_on = np.concatenate(self._parts, axis=1)
        good = (recorded != NONE) & (recorded >= 0) & (recorded_on != NONE) & (recorded_on >= 0)
        return StreamWaits(of_stream=kind[good] == 1, correlation=correlation[good], stream=stream[good],
                           device=device[good], recorded=recorded[good], recorded_on=recorded_on[good])


@dataclass(frozen=True, slots=True, kw_only=True)
class Awaited:
    """Kernels that were waited for, and who waited; all are rows of a timeline."""

    kernel: Integers
    """The last kernel that was launched on the event's stream before the event was recorded; -1 for none."""
    call: Integers
    """The call that waited, or that made a stream wait."""
    of_thread: Flags
    """True if a thread waited."""
    waiting: Integers
    """The first kernel launched on the waiting stream after the call; -1 for none, and if a thread waited."""


def awaited(timeline: RankTimeline, waits: StreamWaits) -> Awaited:
    """Finds the kernels of waits; omits waits whose calls are not in the timeline."""
    calls = np.flatnonzero(timeline.type == RUNTIME)
    recording, waiting = (_calls_of(timeline, calls, key) for key in (waits.recorded, waits.correlation))
    streams, found = dict(_launched(timeline, calls)), list[tuple[int, int, int]]()
    some = np.flatnonzero((recording >= 0) & (waiting >= 0))
    nothing = np.empty(0, np.int64), np.empty(0, np.int64)
    for row in some.tolist():
        device = int(waits.device[row])
        kernels, at = streams.get((device, int(waits.recorded_on[row])), nothing)
        before = int(np.searchsorted(at, timeline.start_ns[recording[row]])) - 1
        others, at = streams.get((device, int(waits.stream[row])), nothing) if waits.of_stream[row] else nothing
        behind = int(np.searchsorted(at, timeline.end_ns[waiting[row]]))
        found.append((int(kernels[before]) if before >= 0 else -1, int(waiting[row]),
                      int(others[behind]) if behind < len(others) else -1))
    kernel, call, first = np.array(found, np.int64).reshape(-1, 3).T
    return Awaited(kernel=kernel, call=call, waiting=first, of_thread=~waits.of_stream[some])


def _calls_of(timeline: RankTimeline, calls: Integers, correlation: Integers) -> Integers:
    """Returns the call with each of these correlation ids; -1 for none."""
    ordered = calls[np.argsort(timeline.correlation[calls], kind="stable")]
    place = np.searchsorted(timeline.correlation[ordered], correlation)
    hit = np.append(ordered, -1)[place]
    return np.where((hit >= 0) & (timeline.correlation[hit] == correlation), hit, -1)


def _launched(timeline: RankTimeline, calls: Integers) -> Iterator[tuple[tuple[int, int], tuple[Any, Any]]]:
    """Yields (device, stream) with its kernels in the order of their launches, and the times of the launches."""
    kernels = np.flatnonzero(timeline.type >= NUM_HOST)
    launch = joined(timeline.correlation, kernels, calls)
    kernels, at = kernels[launch >= 0], timeline.start_ns[launch[launch >= 0]]
    device, stream = (timeline.more[key][kernels] for key in (DEVICE, STREAM))
    order = np.lexsort((at, stream, device))
    kernels, at, device, stream = (values[order] for values in (kernels, at, device, stream))
    cuts = np.flatnonzero((np.diff(device) != 0) | (np.diff(stream) != 0)) + 1
    for mine, times in zip(np.split(kernels, cuts), np.split(at, cuts), strict=True):
        if len(mine):
            yield (int(timeline.more[DEVICE][mine[0]]), int(timeline.more[STREAM][mine[0]])), (mine, times)


def num_blind(timeline: RankTimeline, waits: StreamWaits) -> int:
    """Counts the calls that make a stream wait for an event that the timeline does not show."""
    names = [number for number, name in enumerate(timeline.names) if name.startswith(CALLS)]
    calls = timeline.correlation[(timeline.type == RUNTIME) & np.isin(timeline.name, names)]
    return int(np.count_nonzero(~np.isin(calls, waits.correlation)))
