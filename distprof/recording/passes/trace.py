"""The trace pass: the profiler's timeline, and a labelled row for every collective."""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist

from distprof.contract.paths import TRACE_JSON
from distprof.contract.tables import EVENTS, TableRow
from distprof.recording.communication.backend_times import time_calls
from distprof.recording.passes.arrivals import LabelledSteps
from distprof.recording.passes.protocol import PassContext
from distprof.recording.run_directory import RankFolder
from distprof.recording.tracing.timeline import Timeline

TABLE_BYTES, CALL_BYTES = 20_000, 64
"""What events.parquet and collectives.parquet take without rows, which are written later; and a row of the latter."""


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
        content = self._timeline.write(folder.path / TRACE_JSON, steps=traced, room=room)
        folder.left_out = self._timeline.left_out
        time_calls(self._collectives.calls, content.backend_events)
        if content.rows:
            folder.files[TRACE_JSON] = len(content.rows)
            _add_steps(content.rows, traced)
            folder.write_rows(EVENTS, content.rows)


def _add_steps(events: Sequence[TableRow], traced: Sequence[TableRow]) -> None:
    """Adds to each event the step in which it starts."""
    windows = [(step["start_ns"], step["end_ns"], step["step"]) for step in traced]
    for event in events:
        event["step"] = next((step for start, end, step in windows if start <= event["start_ns"] < end), None)
