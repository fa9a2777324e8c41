"""The execution pass: what ran and what depended on what, with a timeline of the same step and its communication."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch.distributed as dist

from distprof.contract.paths import EXECUTION_TIMELINE_JSON, EXECUTION_TRACE_JSON
from distprof.contract.tables import EXECUTION_COLLECTIVES, TableRow
from distprof.recording.communication.backend_times import time_calls
from distprof.recording.communication.collective_call import CollectiveCall, collective_rows
from distprof.recording.execution_observer import ExecutionObserver
from distprof.recording.passes.protocol import Pass, PassContext
from distprof.recording.run_directory import RankFolder
from distprof.recording.tracing.timeline import Timeline


class ExecutionSteps(Pass):
    """Steps under the profiler and torch's observer of execution traces.

    The observer makes a step several times as long: what is communicated meanwhile has a table of its own.
    """

    name = "execution"
    slowed_by_compilation = True
    lost_elsewhere = "the execution trace is lost: only the thread that started it can end it"

    def __init__(self, context: PassContext) -> None:
        self._timeline = Timeline(context.scopes, context.sessions, context.note, context.tags)
        self._collectives = context.collectives
        self._folder: Callable[[], Path | None] = context.folder
        self._observer = ExecutionObserver(lambda: context.note(
            "the script records its own execution trace, so distprof records none"))
        self._first = 0
        self._calls: list[CollectiveCall] = []

    def start(self) -> None:
        self._first = len(self._collectives.calls)
        self._timeline.start()
        if dist.is_available():
            self._collectives.start(timeline=self._timeline.recording)
        folder = self._folder()
        if folder is not None and self._timeline.recording:
            self._observer.start(folder)

    def stop(self) -> None:
        self._observer.stop()
        self._collectives.stop()
        self._timeline.stop()
        self._calls += self._collectives.calls[self._first:]
        del self._collectives.calls[self._first:]

    def closure_begins(self) -> None:
        self._timeline.closure_begins()

    def closure_ends(self) -> None:
        self._timeline.closure_ends()

    def write(self, folder: RankFolder, steps: Sequence[TableRow], *, ended: bool, elsewhere: bool) -> None:
        if not ended or elsewhere or self._timeline.is_written:
            return
        own = [step for step in steps if step["pass"] == self.name]
        if not own:  # the job ended in the first of them
            self._observer.discard()
            return
        content = self._timeline.write(folder.path / EXECUTION_TIMELINE_JSON, steps=own)
        if content.rows:
            folder.files[EXECUTION_TIMELINE_JSON] = len(content.rows)
            time_calls(self._calls, content.backend_events)
            mine = {step["step"] for step in own}
            folder.write_rows(EXECUTION_COLLECTIVES, collective_rows(
                call for call in self._calls if call.step in mine))
        if self._observer.compress(folder.path):
            folder.files[EXECUTION_TRACE_JSON] = 0
