"""Rows: short steps are added up for 0.2 s, a longer step has its own row."""

from __future__ import annotations

import gc
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

from distprof.contract.watch import UNKNOWN
from distprof.own import time
from distprof.process.accelerators import accelerator, is_capturing
from distprof.recording.watch.root_phases import StepPhases
from distprof.system import resource

if TYPE_CHECKING:
    from resource import struct_rusage

ROW_NS = 200_000_000
"""A row ends once it covers this time in ns."""
BATCH_NS = 800_000_000
"""Time in ns after which what was noted at the ends of rows becomes rows: code that runs rarely has cold caches."""
MEMORY_NS = 2_000_000_000
"""Time of steps in ns between two looks at the device's memory, which take longer than the rest of a row."""
STATM, MOST_STATM = "/proc/self/statm", 256
PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
ALLOCATED = ("allocated_bytes", "all", "current")
Row = dict[str, int]


class GarbageTime:
    """Time in Python's garbage collection, which blocks all threads."""

    def __init__(self) -> None:
        self.total_ns = 0
        self._began_ns = 0
        self._ours = self._seen  # one bound method, so that it is found again in the list

    def start(self) -> None:
        """Begins to measure."""
        gc.callbacks.append(self._ours)

    def stop(self) -> None:
        """Removes the callback."""
        if self._ours in gc.callbacks:
            gc.callbacks.remove(self._ours)

    def _seen(self, phase: str, _about: Mapping[str, int]) -> None:
        now = time.perf_counter_ns()
        if phase == "start":
            self._began_ns = now
        elif self._began_ns:
            self.total_ns += now - self._began_ns
            self._began_ns = 0


class RowEnd(NamedTuple):
    """What is noted at the end of a row, where time is short; the rest is done later, for several rows at once."""

    next_step: int
    """The first step of the next row."""
    end_ns: int
    thread: int
    used: struct_rusage
    """What the thread has used; its fields are read later."""
    gc_ns: int
    is_inference: bool
    """True if there is no backward: the time between forward calls counts as loading data."""
    cut: Any = None
    """The end of the row on the device (`device_marks.Cut`)."""


class Rows:
    """Adds up the steps of each row, and what the process used meanwhile."""

    def __init__(self, garbage: GarbageTime) -> None:
        self._garbage = garbage
        self._host_bytes = self._device_bytes = UNKNOWN
        self._memory_ns = MEMORY_NS
        self._ends = deque[RowEnd]()
        self._begun: RowEnd
        self._next_step = 0

    def begin(self, first_step: int) -> None:
        """Begins with this step."""
        self._begun, self._next_step = self._end_at(first_step), first_step
        self._ends.clear()
        self.measure_host()

    def measure_host(self) -> None:
        """Measures the memory of the process for the next rows; any thread may call it, as it takes 0.1 ms."""
        self._host_bytes = _host_bytes()

    def end(self, next_step: int, cut: Callable[[], Any], *, is_inference: bool) -> None:
        """Ends a row before this step, if it has steps; `cut` then marks its end on the device."""
        if next_step > self._next_step:  # less if two threads end steps
            self._next_step = next_step
            self._ends.append(self._end_at(next_step, cut(), is_inference=is_inference))

    def taken(self, steps: Callable[[int, bool], Sequence[StepPhases]], *, measures: bool) -> list[
            tuple[Row, RowEnd]]:
        """Returns the rows that ended since the last call, with their ends; any thread may call it, one at a time.

        Args:
            steps: Returns the phases of the next steps: their number, and whether there is no backward.
            measures: Whether memory of the device may be measured, which only the thread of the steps may do.
        """
        rows: list[tuple[Row, RowEnd]] = []
        while self._ends:
            begun, end = self._begun, self._ends.popleft()
            self._begun = end._replace(cut=None)  # the thread of the steps has to be the one that drops device events
            phases = steps(end.next_step - begun.next_step, end.is_inference)
            rows.append((self._row(phases, begun, end, measures=measures), end))
        return rows

    def _row(self, steps: Sequence[StepPhases], begun: RowEnd, end: RowEnd, *, measures: bool) -> Row:
        spans, *parts, optimizer = zip(*steps, strict=True)
        span, longest = sum(spans), max(spans)
        data, forward, backward = (UNKNOWN,) * 3 if UNKNOWN in parts[0] else map(sum, parts)
        known = end.thread == begun.thread
        if measures:
            self._measure_device(span)
        return {"first_step": begun.next_step, "num_steps": len(steps), "end_ns": end.end_ns,
                "span_ns": span, "longest_ns": longest, "longest_step": begun.next_step + spans.index(longest),
                "data_ns": data, "forward_ns": forward, "backward_ns": backward, "optimizer_ns": sum(optimizer),
                "device_ns": UNKNOWN, "cpu_ns": _cpu_ns(end.used) - _cpu_ns(begun.used) if known else UNKNOWN,
                "switches": end.used.ru_nivcsw - begun.used.ru_nivcsw if known else UNKNOWN,
                "gc_ns": end.gc_ns - begun.gc_ns, "host_bytes": self._host_bytes, "device_bytes": self._device_bytes}

    def _measure_device(self, span_ns: int) -> None:
        self._memory_ns += span_ns
        if self._memory_ns >= MEMORY_NS:
            self._device_bytes, self._memory_ns = _device_bytes(), 0

    def _end_at(self, next_step: int, cut: Any = None, *, is_inference: bool = False) -> RowEnd:
        return RowEnd(next_step, time.time_ns(), get_ident(), resource.getrusage(resource.RUSAGE_THREAD),
                      self._garbage.total_ns, is_inference, cut)


def _cpu_ns(used: struct_rusage) -> int:
    return round((used.ru_utime + used.ru_stime) * 1e9)


def _host_bytes() -> int:
    try:
        number = os.open(STATM, os.O_RDONLY | os.O_CLOEXEC)  # half the time of Path.read_bytes
        try:
            return int(os.read(number, MOST_STATM).split()[1]) * PAGE
        finally:
            os.close(number)
    except (OSError, ValueError, IndexError):
        return UNKNOWN


def _device_bytes() -> int:
    """Returns the bytes of tensors on the current device of an accelerator that the script has initialised."""
    measures: Any = getattr(accelerator(), "memory_stats_as_nested_dict", None)
    if measures is None or is_capturing():
        return UNKNOWN
    found = measures()
    for name in ALLOCATED:
        found = found.get(name, {}) if isinstance(found, dict) else {}
    return found if isinstance(found, int) else UNKNOWN
