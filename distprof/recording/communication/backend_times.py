"""Gives labelled calls their start and end, by the work of the backends on the timeline."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from distprof.recording.communication.backend_events import GLOO, BackendEvent
from distprof.recording.communication.collective_call import CollectiveCall
from distprof.recording.communication.gloo_times import time_on_caller, time_queues
from distprof.recording.communication.kernel_times import time_kernels


def time_calls(calls: Sequence[CollectiveCall], events: Iterable[BackendEvent]) -> None:
    """Fills in `start_ns`, `end_ns` and `timed_by` of the calls whose work is found without doubt."""
    lanes: dict[int | str, list[BackendEvent]] = defaultdict(list)
    kernels = []
    for event in sorted(events, key=lambda event: event.start_ns):
        if event.name.startswith(GLOO):
            lanes[event.thread].append(event)
        elif event.group is not None:
            kernels.append(event)
    time_on_caller(calls, lanes)
    time_queues(calls, lanes)
    time_kernels(calls, kernels)
