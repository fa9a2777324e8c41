"""The arrivals pass: when this rank comes to each collective and waits for it, over many steps.

In steps of it, as in those of the trace pass, every collective is labelled, and what the thread uses of its processor
is noted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from distprof.contract.passes import ARRIVALS
from distprof.contract.tables import TableRow
from distprof.recording.passes.protocol import Pass, PassContext
from distprof.system import resource

SCHEDULING = Path("/proc/thread-self/schedstat")
"""Time on a processor, time ready to run without one (both in ns), number of turns."""


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
    """Usage of the calling thread in each step."""

    def __init__(self) -> None:
        self.rows: list[TableRow] = []
        """Columns of steps.parquet, a row per step; empty ones where a step ended on another thread."""
        self._began: _Reading | None = None

    def begin(self) -> None:
        """A step begins here."""
        self._began = _Reading.now()

    def end(self) -> None:
        """It ends, and the next one begins."""
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
        return None  # not Linux, or a kernel that does not count it


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
        """What the thread used of its processor."""
        return self._usage.rows


class ArrivalSteps(LabelledSteps):
    """Steps in which collectives are labelled, and nothing else is on; of one rank, whose calls wait for nobody, steps
    that nothing slows down."""

    name = ARRIVALS

    def start(self) -> None:
        if dist.is_available() and not (dist.is_initialized() and dist.get_world_size() == 1):
            self._collectives.start()
        self._lines.start()

    def stop(self) -> None:
        self._lines.stop()
        self._collectives.stop()
