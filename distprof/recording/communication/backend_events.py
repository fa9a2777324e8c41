"""Work of a communication backend on the timeline, and the call times that follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distprof.recording.communication.collective_call import CollectiveCall

GLOO = "gloo:"
"""Begins the names of gloo's events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendEvent:
    """One piece of work of a backend."""

    name: str
    thread: int | str
    start_ns: int
    end_ns: int | None
    """None where it had not ended when the timeline did."""
    elements: int | None = None
    """Elements of the inputs, where known."""
    group: str | None = None
    sequence: int | None = None
    collective: str | None = None


def is_backend_event(name: str, group: object) -> bool:
    """True for events of a communication backend: those of gloo by name, kernels by the group that they carry."""
    return name.startswith(GLOO) or (group is not None and name.lower().startswith(("nccl", "rccl")))


def fill_times(call: CollectiveCall, events: Sequence[BackendEvent]) -> None:
    """Sets start, end and `timed_by` of a call from the events that are its work."""
    call.start_ns = min(event.start_ns for event in events)
    if call.end_ns is not None and call.runner is not None:
        return  # our callback runs inside the event: its time is nearer to the end of the op
    ends = [event.end_ns for event in events if event.end_ns is not None]
    if len(ends) == len(events):
        call.end_ns, call.timed_by = max(ends), "timeline"
