"""The trace pass and the arrivals pass: steps in which every collective is labelled.

The trace pass also has the profiler's timeline. The arrivals pass records, over many steps, when this rank arrives at
each collective and waits for it. Both record how much processor time the thread uses.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from distprof.contract.passes import ARRIVALS
from distprof.contract.paths import TRACE_JSON
from distprof.contract.tables import EVENTS, TableRow
from distprof.own import time
from distprof.recording.communication.backend_times import time_calls
from distprof.recording.passes.protocol import Pass, PassContext
from distprof.recording.run_directory import RankFolder
from distprof.recording.tracing.timeline import Timeline
from distprof.system import resource

SCHEDULING = Path("/proc/thread-self/schedstat")
"""Time on a processor, time ready to run but waiting for one (both in ns), number of time slices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    thread: int
    cpu_ns: int
    switched_out: int
    run_queue_ns: int | None

    @classmethod
    def now(cls) -> _Reading:
        return cls(thread=threading.get_ident(), cpu_ns=time.thread_time_ns(),
                   switched_out=resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw, run_queue_ns=_run_queue_ns())


class ThreadUsage:
    """Processor usage of the calling thread in each step."""

    def __init__(self) -> None:
        self.rows: list[TableRow] = []
        """Columns of steps.parquet, one row per step; empty if a step ended on another thread than it began on."""
        self._began: _Reading | None = None

    def begin(self) -> None:
        """Begins a step."""
        self._began = _Reading.now()

    def end(self) -> None:
        """Ends a step and begins the next."""
        began, ended = self._began, _Reading.now()
        self.rows.append(_difference(began, ended) if began is not None and began.thread == ended.thread else {})
        self._began = ended


def _difference(began: _Reading, ended: _Reading) -> TableRow:
    known = began.run_queue_ns is not None and ended.run_queue_ns is not None
    return {"cpu_ns": ended.cpu_ns - began.cpu_ns, "switched_out": ended.switched_out - began.switched_out,
            "run_queue_ns": (ended.run_queue_ns or 0) - (began.run_queue_ns or 0) if known else None}


def _run_queue_ns() -> int | None:
    try:
        return int(SCHEDULING.read_bytes().split()[1])
    except (OSError, ValueError, IndexError):
        return None  # not Linux, or a kernel that does not record it


class LabelledSteps(Pass):
    """What the trace pass and the arrivals pass have in common."""

    labels_collectives = True

    def __init__(self, context: PassContext) -> None:
        self._collectives, self._lines = context.collectives, context.lines
        self._usage = ThreadUsage()

    def restart_step(self) -> None:
        self._lines.look_at_this_thread()
        self._usage.begin()

    def next_step(self) -> None:
        self._usage.end()

    def step_columns(self) -> Sequence[TableRow]:
        """Returns the processor usage of the thread in each step."""
        return self._usage.rows


class ArrivalSteps(LabelledSteps):
    """Steps in which collectives are labelled, and nothing else is on.

    In a job of one rank, whose collectives wait for nobody, they are not labelled either, so nothing slows the steps
    down.
    """

    name = ARRIVALS

    def start(self) -> None:
        if dist.is_available() and not (dist.is_initialized() and dist.get_world_size() == 1):
            self._collectives.start()
        self._lines.start()

    def stop(self) -> None:
        self._lines.stop()
        self._collectives.stop()


TABLE_BYTES, CALL_BYTES = 20_000, 64
"""Bytes reserved for events.parquet and collectives.parquet, which are written later: without rows, and per row of the
latter."""


class TraceSteps(LabelledSteps):
    """Steps under the profiler."""

    name = "trace"
    slowed_by_compilation = True
    lost_elsewhere = "the timeline is lost: only the thread that started it can end it"

    def __init__(self, context: PassContext) -> None:
        super().__init__(context)
        self._timeline = Timeline(context.scopes, context.sessions, context.note, context.tags)

    def start(self) -> None:
        self._timeline.start()
        if dist.is_available():
            self._collectives.start(timeline=self._timeline.recording)
        self._lines.start()

    def stop(self) -> None:
        self._lines.stop()
        self._collectives.stop()
        self._timeline.stop()

    def closure_begins(self) -> None:
        self._timeline.closure_begins()

    def closure_ends(self) -> None:
        self._timeline.closure_ends()

    def write(self, folder: RankFolder, steps: Sequence[TableRow], *, ended: bool, elsewhere: bool) -> None:
        if ended and not elsewhere and not self._timeline.is_written:
            self._write_timeline(folder, [step for step in steps if step["pass"] == self.name])

    def _write_timeline(self, folder: RankFolder, traced: Sequence[TableRow]) -> None:
        room = self._timeline.room_in(folder.path) - TABLE_BYTES - CALL_BYTES * len(self._collectives.calls)
        found = self._timeline.write(folder, TRACE_JSON, steps=traced, room=room, table=True)
        folder.left_out = found.left_out
        time_calls(self._collectives.calls, found.backend_events)
        if found.num_events:
            folder.files[TRACE_JSON] = found.num_events
            if found.failure is not None:
                raise found.failure
            folder.files[EVENTS.file] = found.num_events
