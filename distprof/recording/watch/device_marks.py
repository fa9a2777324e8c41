"""What rows and their phases take on the device, by events on the current stream: read later, never waited for."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from distprof.contract.watch import UNKNOWN
from distprof.own import lock, time
from distprof.process.accelerators import CPU, device_type, is_capturing
from distprof.recording.watch.phase_marks import Marks, PhaseMarks, marked_steps
from distprof.recording.watch.rows import Row
from distprof.timing.stopwatch import StreamStopwatch, has_events, recorded_event

PATIENCE_NS = 2_000_000_000
"""How long a row waits for its time on the device; then it is written without it."""
ALIKE = 1.25
"""Times what its marked steps make expect, that a row may take: else one that was not marked was long, and nothing is
known of its phases."""
PHASES = ("data_ns", "forward_ns", "backward_ns", "optimizer_ns")


class _Held(NamedTuple):
    row: Row
    since_ns: int
    began: torch.Event | None
    ended: torch.Event | None
    marks: Marks
    is_inference: bool


class DeviceMarks:
    """Holds rows back until the device has come to their ends."""

    def __init__(self) -> None:
        self._held: deque[_Held] = deque()
        self._lock = lock()
        self._last: torch.Event | None = None
        self._tells_phases = False
        self.phases = PhaseMarks()

    def begin(self) -> None:
        """The first row begins."""
        self._last, self._tells_phases = recorded_event(), self.phases.begin_row()

    def end(self, row: Row, *, is_inference: bool) -> None:
        """A row ended, and the next one begins.

        Args:
            row: Its phases are those of the host; where there is a device they become those of its stream.
            is_inference: There is no backward: between forward calls the script looks for data.
        """
        began, self._last = self._last, recorded_event()
        known = began is not None and self._last is not None and began.device == self._last.device
        if self._tells_phases:
            row.update(dict.fromkeys(PHASES, UNKNOWN))
        self._held.append(_Held(row, time.perf_counter_ns(), began if known else None, self._last if known else None,
                                self.phases.taken(), is_inference))
        self._tells_phases = self.phases.begin_row()

    def settled(self) -> list[Row]:
        """Rows that the device has finished; call it on the thread of the steps."""
        rows: list[Row] = []
        with self._held_now() as held:
            while held and (held[0].ended is None or _is_over(held[0]) or _is_overdue(held[0])):
                rows.append(held.popleft().row)
        return rows

    def overdue(self, *, all_of_them: bool = False) -> list[Row]:
        """Rows that have waited too long, or all rows. It may be called on any thread, as it asks no device."""
        rows: list[Row] = []
        with self._held_now() as held:
            while held and (all_of_them or _is_overdue(held[0])):
                rows.append(held.popleft().row)
        return rows

    @contextmanager
    def _held_now(self) -> Iterator[deque[_Held]]:
        """The rows that are held; none while another thread, or code that a signal interrupted, uses them."""
        if not self._lock.acquire(blocking=False):
            yield deque()
            return
        try:
            yield self._held
        finally:
            self._lock.release()


def _is_overdue(held: _Held) -> bool:
    return time.perf_counter_ns() - held.since_ns > PATIENCE_NS


def _is_over(held: _Held) -> bool:
    """True where the row has its time now, or will never have it."""
    assert held.ended is not None and held.began is not None
    if is_capturing():  # to ask would break that
        return False
    try:
        if not held.ended.query():
            return False
        held.row["device_ns"] = max(0, round(held.began.elapsed_time(held.ended) * 1e6))
        held.row.update(_phases(held))
    except RuntimeError:
        return True  # the script's error, which torch repeats
    return True


def _phases(held: _Held) -> Row:
    """The span of a row, divided as its marked steps were on the device; nothing where these do not stand for it.

    Raises:
        RuntimeError: A mark is of another device, or of a stream that has not come to it.
    """
    steps = [*marked_steps(held.marks)]
    total, data, forward, optimizer = (sum(times) for times in zip(*steps, (0.0,) * 4, strict=True))
    if not total or held.row["device_ns"] > ALIKE * 1e6 * total * held.row["num_steps"] / len(steps):
        return {}
    if held.is_inference:
        data = total - forward - optimizer
    span = held.row["span_ns"]
    found = {"data_ns": round(span * data / total), "forward_ns": round(span * forward / total),
             "optimizer_ns": round(span * optimizer / total)}
    return found | {"backward_ns": max(0, span - sum(found.values()))}


class StepMarks(StreamStopwatch):
    """Marks of one step, in ns from its start on the stream. No clocks are compared, so nothing is waited for."""

    def __init__(self, kind: str) -> None:
        """The step begins now, on a device of this type."""
        self._prepare(kind)
        self._marks: list[torch.Event] = []
        self.origin = self.mark()

    def mark(self) -> torch.Event | None:
        event = super().mark()
        if event is not None and (not self._marks or self._marks[-1] is not event):
            self._marks.append(event)
        return event

    def are_over(self) -> bool:
        """True once the streams have come to all marks."""
        if is_capturing():
            return False
        while self._marks and self._marks[-1].query():
            self._marks.pop()
        return not self._marks

    def resolve(self, mark: torch.Event | None) -> int:
        """
        Raises:
            RuntimeError: It is of another device than the start of the step.
        """
        if mark is None or self.origin is None:
            raise RuntimeError("there is no mark")
        return round(self.origin.elapsed_time(mark) * 1e6)

    def settle(self, *, every_stream: bool = True) -> None:
        """Waits for nothing: see `are_over`."""


def step_marks() -> StepMarks | None:
    """None where there is no device, or none with events, or a graph is captured."""
    kind = device_type()
    if kind == CPU or is_capturing() or not has_events(kind):
        return None
    return StepMarks(kind)
