"""Device times of rows and their phases, from events on the current stream that are read later, never waited for."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from distprof.contract.watch import UNKNOWN
from distprof.own import lock, time
from distprof.process.accelerators import CPU, device_type, is_capturing
from distprof.recording.watch.phase_marks import BEGIN, Marks, PhaseMarks, marked_steps
from distprof.recording.watch.rows import Row, RowEnd
from distprof.timing.stopwatch import StreamStopwatch, has_events, recorded_event

PATIENCE_NS = 2_000_000_000
"""Maximum time in ns that a row waits for its device time; then it is written without it."""
LONG_NS = 1_000_000_000
"""A row of a longer step waits for two more of its steps: the host may be that far ahead of the device."""
ALIKE = 1.25
"""Upper bound of a row's device time, as a multiple of what its marked steps predict. Above it, an unmarked step was
long, and the phases are unknown."""
PHASES = ("data_ns", "forward_ns", "backward_ns", "optimizer_ns")


class Cut(NamedTuple):
    """The end of a row on the device: when it was marked by the host's clock, and marks on the stream."""

    since_ns: int = 0
    began: torch.Event | None = None
    ended: torch.Event | None = None
    marks: Marks | None = None
    """None: the device tells no phases."""


NO_CUT = Cut()
"""Without a device."""


class _Held(NamedTuple):
    row: Row
    cut: Cut
    is_inference: bool


class DeviceMarks:
    """Holds rows back until the device has reached their ends."""

    def __init__(self) -> None:
        self._held: deque[_Held] = deque()
        self._dropped = deque[Cut]()
        """Cuts of rows that another thread took. Only the thread of the steps frees their events: elsewhere that makes
        CUDA create a context on its first device."""
        self._lock = lock()
        self._last: torch.Event | None = None
        self._has_device = self._tells_phases = False
        self._is_new = False
        """True once another thread has seen that the script uses a device."""
        self.phases = PhaseMarks()

    @property
    def need_thread_of_steps(self) -> bool:
        """True if `settled` must be called; without a device, `overdue` returns all rows."""
        return self._has_device or self._is_new

    def begin(self) -> None:
        """Begins the first row."""
        self._has_device = device_type() != CPU
        self._last, self._tells_phases = recorded_event(), self.phases.begin_row()

    def cut(self) -> Cut:
        """Marks the end of a row, where the next one begins."""
        if not self._has_device:  # the usual case without a device, quick with cold caches
            return NO_CUT
        began, self._last = self._last, recorded_event()
        known = began is not None and self._last is not None and began.device == self._last.device
        marks = self.phases.taken()
        found = Cut(time.perf_counter_ns(), began if known else None, self._last if known else None,
                    marks if self._tells_phases else None)
        self._tells_phases = self.phases.begin_row()
        if self._tells_phases:
            self.phases.add(BEGIN, self._last)
        return found

    def end(self, rows: Iterable[tuple[Row, RowEnd]]) -> None:
        """Takes rows with their ends; any thread may call it, one at a time.

        Args:
            rows: Have the phases of the host; with a device, they are replaced by those of its stream.
        """
        for row, end in rows:
            if end.cut.marks is not None:
                row.update(dict.fromkeys(PHASES, UNKNOWN))
            self._held.append(_Held(row, end.cut, end.is_inference))

    def settled(self) -> list[Row]:
        """Returns rows that the device has finished; call it on the thread of the steps."""
        rows: list[Row] = []
        with self._held_now() as held:
            while held and (held[0].cut.ended is None or _is_over(held[0]) or _is_overdue(held[0])):
                rows.append(held.popleft().row)
        self._dropped.clear()
        if self._is_new and not self._has_device:
            self.begin()
        return rows

    def overdue(self, *, all_of_them: bool = False) -> list[Row]:
        """Returns rows that have waited too long or for no device, or all rows. It uses no device, so any thread may
        call it."""
        rows: list[Row] = []
        self._is_new = self._is_new or device_type() != CPU
        with self._held_now() as held:
            while held and (all_of_them or held[0].cut.ended is None or _is_overdue(held[0])):
                one = held.popleft()
                if one.cut.ended is not None:
                    self._dropped.append(one.cut)
                rows.append(one.row)
        return rows

    @contextmanager
    def _held_now(self) -> Iterator[deque[_Held]]:
        """Yields the held rows; none while another thread, or code that a signal interrupted, uses them."""
        if not self._lock.acquire(blocking=False):
            yield deque()
            return
        try:
            yield self._held
        finally:
            self._lock.release()


def _is_overdue(held: _Held) -> bool:
    span_ns = held.row["span_ns"]
    more_ns = 2 * span_ns if span_ns > LONG_NS else 0
    return time.perf_counter_ns() - held.cut.since_ns > PATIENCE_NS + more_ns


def _is_over(held: _Held) -> bool:
    """True if the row has its device time now, or will never have it."""
    _, began, ended, marks = held.cut
    assert ended is not None and began is not None
    if is_capturing():  # asking would break the capture
        return False
    try:
        if not ended.query():
            return False
        held.row["device_ns"] = max(0, round(began.elapsed_time(ended) * 1e6))
        held.row.update(_phases(held.row, marks or [], is_inference=held.is_inference))
    except RuntimeError:
        return True  # an error of the script, which torch raises again
    return True


def _phases(row: Row, marks: Marks, *, is_inference: bool) -> Row:
    """Divides a row's span like the device time of its marked steps; empty if these are not representative.

    Raises:
        RuntimeError: A mark is on another device, or the stream has not reached it.
    """
    steps = [*marked_steps(marks)]
    total, data, forward, optimizer = (sum(times) for times in zip(*steps, (0.0,) * 4, strict=True))
    if not total or row["device_ns"] > ALIKE * 1e6 * total * row["num_steps"] / len(steps):
        return {}
    if is_inference:
        data = total - forward - optimizer
    span = row["span_ns"]
    found = {"data_ns": round(span * data / total), "forward_ns": round(span * forward / total),
             "optimizer_ns": round(span * optimizer / total)}
    return found | {"backward_ns": max(0, span - sum(found.values()))}


class StepMarks(StreamStopwatch):
    """Marks of one step, in ns from its start on the stream. Clocks are not compared, so nothing is waited for."""

    def __init__(self, kind: str) -> None:
        """Begins a step on a device of this type."""
        self._prepare(kind)
        self._stream = stream_id()
        self.is_mixed = False
        """True if marks are on several streams, as in FSDP: then waits on one overlap with computation on another."""
        self._marks: list[torch.Event] = []
        self.origin = self.mark()

    def mark(self) -> torch.Event | None:
        event = super().mark()
        self.is_mixed = self.is_mixed or stream_id() != self._stream
        if event is not None and (not self._marks or self._marks[-1] is not event):
            self._marks.append(event)
        return event

    def are_over(self) -> bool:
        """True once the streams have reached all marks."""
        if is_capturing():
            return False
        while self._marks and self._marks[-1].query():
            self._marks.pop()
        return not self._marks

    def resolve(self, mark: torch.Event | None) -> int:
        """Returns the time of a mark in ns from the start of the step.

        Raises:
            RuntimeError: There is no mark, or it is on another device than the start of the step.
        """
        if mark is None or self.origin is None:
            raise RuntimeError("there is no mark")
        return round(self.origin.elapsed_time(mark) * 1e6)

    def settle(self, *, every_stream: bool = True) -> None:
        """Does nothing; see `are_over`."""


def stream_id() -> int | None:
    """Returns the number of the current stream; None if unknown."""
    try:
        return torch.accelerator.current_stream().stream_id
    except (AttributeError, RuntimeError):  # an older torch, or a device without streams
        return None


def step_marks() -> StepMarks | None:
    """Begins marks of a step; None without a device that has events, or during a graph capture."""
    kind = device_type()
    if kind == CPU or is_capturing() or not has_events(kind):
        return None
    return StepMarks(kind)
