"""Fills in start and end of labelled calls, from what the communication backends did on the timeline.

GPU kernels carry group and sequence number; events of gloo do not and are joined in `gloo_times`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence

from distprof.contract.collective_ops import COLLECTIVE_OPS, POINT_TO_POINT
from distprof.recording.communication.collective_call import GLOO, BackendEvent, CollectiveCall, fill_times
from distprof.recording.communication.gloo_times import time_on_caller, time_queues


def time_calls(calls: Sequence[CollectiveCall], events: Iterable[BackendEvent]) -> None:
    """Fills in `start_ns`, `end_ns` and `timed_by` of the calls whose backend events are found unambiguously."""
    lanes: dict[int | str, list[BackendEvent]] = defaultdict(list)
    kernels = []
    for event in sorted(events, key=lambda event: event.start_ns):
        if event.name.startswith(GLOO):
            lanes[event.thread].append(event)
        elif event.group is not None:
            kernels.append(event)
    time_on_caller(calls, lanes)
    time_queues(calls, lanes)
    _time_kernels(calls, kernels)


def _time_kernels(calls: Sequence[CollectiveCall], kernels: Sequence[BackendEvent]) -> None:
    """Joins kernels with calls by group and sequence number; calls that NCCL coalesces into one launch share a kernel.

    Kernels without a sequence number, as some versions of torch write them, are joined with the call that launched
    them.
    """
    _time_launched(calls, [kernel for kernel in kernels if kernel.sequence is None])
    together: dict[tuple[str | None, int | None], list[BackendEvent]] = defaultdict(list)
    single: dict[str | None, list[BackendEvent]] = defaultdict(list)
    for kernel in kernels:
        if kernel.sequence is None:
            continue
        if kernel.collective in POINT_TO_POINT:  # numbered separately from collectives
            single[kernel.group].append(kernel)
        else:
            together[kernel.group, kernel.sequence].append(kernel)
    for call in calls:
        if call.on_device and call.op not in POINT_TO_POINT:
            found = together.get((call.group, call.group_sequence), [])
            if found and all(_is_of(call, kernel) for kernel in found):
                fill_times(call, found)
    for group, found in single.items():
        _time_single(group, calls, found)


def _time_launched(calls: Sequence[CollectiveCall], kernels: Sequence[BackendEvent]) -> None:
    """Joins kernels with the call that was running when they were launched, if it is of their group."""
    mine = sorted((call for call in calls if call.on_device), key=lambda call: call.enqueue_ns)
    begins = [call.enqueue_ns for call in mine]
    found: dict[int, list[BackendEvent]] = defaultdict(list)
    for kernel in kernels:
        if kernel.launched_ns is not None:
            place = bisect_right(begins, kernel.launched_ns) - 1
            if place >= 0 and kernel.launched_ns <= mine[place].returned_ns:
                found[place].append(kernel)
    for place, launched in found.items():
        if all(kernel.group == mine[place].group and _is_of(mine[place], kernel) for kernel in launched):
            fill_times(mine[place], launched)


def _is_of(call: CollectiveCall, kernel: BackendEvent) -> bool:
    name = (kernel.collective or "").replace("_", "")
    agrees = (not name or name == "coalesced" or call.op.replace("_", "") in name
              or name in COLLECTIVE_OPS[call.op].nccl)
    return agrees and kernel.start_ns >= call.enqueue_ns


def _time_single(group: str | None, calls: Sequence[CollectiveCall], kernels: Sequence[BackendEvent]) -> None:
    """Joins sends and receives with kernels in order of sequence number, if both are equally many and all match."""
    mine = [call for call in calls if call.on_device and call.group == group and call.op in POINT_TO_POINT]
    ordered = sorted(kernels, key=lambda kernel: kernel.sequence or 0)
    numbers = [kernel.sequence for kernel in ordered]
    if (len(mine) == len(ordered) and len(set(numbers)) == len(numbers)
            and all(kernel.collective == call.op and kernel.start_ns >= call.enqueue_ns
                    for call, kernel in zip(mine, ordered, strict=True))):
        for call, kernel in zip(mine, ordered, strict=True):
            fill_times(call, [kernel])
