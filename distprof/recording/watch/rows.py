"""The row that is being filled: short steps are added up for 0.2 s, a longer step has its own row."""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import get_ident
from typing import Any

from distprof.contract.watch import UNKNOWN
from distprof.own import time
from distprof.process.accelerators import accelerator, is_capturing
from distprof.recording.watch.root_phases import StepPhases
from distprof.system import resource

ROW_NS = 200_000_000
"""A row ends once it covers this time in ns."""
MEMORY_NS = 2_000_000_000
"""Time of steps in ns between two looks at memory, which take longer than the rest of a row."""
STATM = Path("/proc/self/statm")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Used:
    thread: int
    cpu_ns: int
    switches: int
    gc_ns: int


class RowInProgress:
    """Adds up steps, and what the process used meanwhile."""

    def __init__(self, garbage: GarbageTime) -> None:
        self._garbage = garbage
        self._memory = UNKNOWN, UNKNOWN
        self._memory_ns = MEMORY_NS
        self._empty()

    def begin(self) -> None:
        """Begins with the first step."""
        self._used = self._using()
        self._empty()

    def _empty(self) -> None:
        self.num_steps = self.span_ns = 0
        self._first = self._longest = self._longest_ns = 0
        self._data = self._forward = self._backward = self._optimizer = 0
        self._is_unknown = False

    def add(self, step: int, phases: StepPhases) -> None:
        """Adds a step that has ended."""
        span, data, forward, backward, optimizer = phases
        if not self.num_steps:
            self._first, self._longest, self._longest_ns = step, step, span
        elif span > self._longest_ns:
            self._longest, self._longest_ns = step, span
        self.num_steps += 1
        self.span_ns += span
        self._optimizer += optimizer
        if data < 0:
            self._is_unknown = True
        else:
            self._data += data
            self._forward += forward
            self._backward += backward

    def end(self) -> Row:
        """Returns the row and begins the next one."""
        used, before = self._using(), self._used
        known = used.thread == before.thread
        data, forward, backward = (
            (UNKNOWN, UNKNOWN, UNKNOWN) if self._is_unknown else (self._data, self._forward, self._backward))
        host_bytes, device_bytes = self._memory_used()
        row = {"first_step": self._first, "num_steps": self.num_steps, "end_ns": time.time_ns(),
               "span_ns": self.span_ns, "longest_ns": self._longest_ns, "longest_step": self._longest,
               "data_ns": data, "forward_ns": forward, "backward_ns": backward, "optimizer_ns": self._optimizer,
               "device_ns": UNKNOWN, "cpu_ns": used.cpu_ns - before.cpu_ns if known else UNKNOWN,
               "switches": used.switches - before.switches if known else UNKNOWN,
               "gc_ns": used.gc_ns - before.gc_ns, "host_bytes": host_bytes, "device_bytes": device_bytes}
        self._used = used
        self._empty()
        return row

    def _memory_used(self) -> tuple[int, int]:
        """Returns the bytes used on host and device, not older than two seconds of steps."""
        self._memory_ns += self.span_ns
        if self._memory_ns >= MEMORY_NS:
            self._memory, self._memory_ns = (_host_bytes(), _device_bytes()), 0
        return self._memory

    def _using(self) -> _Used:
        return _Used(thread=get_ident(), cpu_ns=time.thread_time_ns(), gc_ns=self._garbage.total_ns,
                     switches=resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw)


def _host_bytes() -> int:
    try:
        return int(STATM.read_bytes().split()[1]) * PAGE
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
