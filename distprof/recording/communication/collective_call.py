"""One communication op of this rank, and the backend's work for it.

A call is labelled when it is issued; its times come from the backend's work on the timeline, and its row of
collectives.parquet from both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from distprof.contract.collective_ops import text_of
from distprof.contract.stuck import OpenCall
from distprof.contract.tables import COLLECTIVES, TAGS, TableRow

GLOO = "gloo:"
"""Prefix of the names of gloo's events."""


class CollectiveCall(OpenCall, kw_only=True):
    """One communication op of this rank; fields of `OpenCall` and those to `wait_end_ns` are columns of its table."""

    group_description: str
    split_bytes: list[int] | None
    in_autograd: bool | None = None
    start_ns: int | None = None
    end_ns: int | None = None
    timed_by: str | None = None
    wait_start_ns: int | None = None
    wait_end_ns: int | None = None
    waits_for_several: bool = False
    """True if the thread also waited for other ops: the wait for this one ended at `wait_end_ns` or earlier."""
    returned_ns: int = 0
    """When the operator had returned: the op was then in the backend's queue, or over."""
    thread: int = 0
    """Native id of the calling thread."""
    runner: int | None = None
    """Native id of the backend's thread that ran the op, known from a callback; None if not known."""
    stamp_ns: int | None = None
    """When that callback ran; the thread finishes the op afterwards."""
    over_by_ns: int | None = None
    """When the op was first seen to be over."""
    work_elements: Sequence[int] = ()
    """Number of elements of each piece of work into which gloo splits the call; empty for blocking and point-to-point
    ops."""
    on_device: bool = False
    """True if a kernel on a GPU does the op."""
    mark: Callable[[], Any] | None = None
    """Records a mark on the stream of the data; None for data on the host."""
    reached: Any = None
    """Mark at which the stream reached the op."""
    waited: Any = None
    """Mark at which the stream began to wait for the op."""
    passed: Any = None
    """Mark at which the stream continued."""
    reached_ns: int | None = None
    """When the stream reached the op."""
    passed_ns: int | None = None
    """When the stream continued, if it had to wait for the op; None if the op was over at some earlier time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendEvent:
    """One event of a communication backend on the timeline."""

    name: str
    thread: int | str
    start_ns: int
    end_ns: int | None
    """None if it had not ended when the timeline did."""
    elements: int | None = None
    """Number of elements of the inputs, if known."""
    group: str | None = None
    sequence: int | None = None
    """Sequence number in its group; None if this version of torch does not record it."""
    collective: str | None = None
    launched_ns: int | None = None
    """When a kernel was launched, if known."""


def note_wait(call: CollectiveCall, start_ns: int, end_ns: int, *, several: bool = False) -> None:
    """Sets when a thread waited for the call; of several waits, the first one counts."""
    if call.wait_start_ns is None:
        call.wait_start_ns, call.wait_end_ns, call.waits_for_several = start_ns, max(start_ns, end_ns), several
        call.passed = None if call.mark is None or call.waited is None else call.mark()


def note_begin(call: CollectiveCall) -> None:
    """Marks that a thread begins to wait for the call."""
    if call.mark is not None and call.waited is None:
        call.waited = call.mark()


def note_passed(call: CollectiveCall) -> None:
    """Marks that the stream itself did the op, or already waits for it: no later wait is expected."""
    if call.mark is not None:
        call.waited, call.passed = call.reached, call.mark()


def is_backend_event(name: str, group: object) -> bool:
    """True for events of a communication backend: gloo's by their name, kernels by the group that they carry."""
    return name.startswith(GLOO) or (group is not None and name.lower().startswith(("nccl", "rccl")))


def fill_times(call: CollectiveCall, events: Sequence[BackendEvent]) -> None:
    """Sets start, end and `timed_by` of a call from the events of its work."""
    call.start_ns = min(event.start_ns for event in events)
    if call.end_ns is not None and call.runner is not None:
        return  # our callback runs inside the event: its time is closer to the end of the op
    ends = [event.end_ns for event in events if event.end_ns is not None]
    if len(ends) == len(events):
        call.end_ns, call.timed_by = max(ends), "timeline"


OF_GROUP = ("group_ranks", "group_size")
NAMES = tuple(column.name for column in COLLECTIVES.columns if column not in TAGS and column.name not in OF_GROUP)


def collective_rows(calls: Iterable[CollectiveCall]) -> list[TableRow]:
    """Returns one row per call."""
    texts = dict[int, str]()  # calls of a group share its list, which may have thousands of ranks
    return [{name: getattr(call, name) for name in NAMES} | _group(call.group_ranks, texts) | _ends(call)
            | _starts(call) for call in calls]


def _group(ranks: Sequence[int], texts: dict[int, str]) -> TableRow:
    text = texts.get(id(ranks))
    if text is None:
        text = texts[id(ranks)] = text_of(ranks)
    return {"group_ranks": text, "group_size": len(ranks)}


def _starts(call: CollectiveCall) -> TableRow:
    """Returns the start of the op on a stream: its kernel's on the timeline, else when the stream reached the op."""
    if call.reached_ns is None or (call.on_device and call.start_ns is not None):
        return {}
    return {"start_ns": max(call.reached_ns, call.enqueue_ns, call.start_ns or 0)}


def _ends(call: CollectiveCall) -> TableRow:
    """Returns the end of the op and of the wait for it, limiting each by the other."""
    end_ns, waited_ns = call.end_ns, call.wait_end_ns
    if call.on_device and end_ns is None and call.passed_ns is not None:
        return {"end_ns": call.passed_ns, "timed_by": "wait"}
    if waited_ns is None or call.on_device:
        return {}
    if end_ns is None or (call.timed_by == "future" and waited_ns < end_ns):
        return {"end_ns": waited_ns, "timed_by": "wait"}
    if call.waits_for_several:
        return {"wait_end_ns": max(call.wait_start_ns or 0, min(waited_ns, end_ns))}
    return {}
