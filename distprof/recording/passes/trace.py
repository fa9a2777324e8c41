"""The trace pass: the profiler's timeline, and a labelled row for every collective."""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist

from distprof.contract.paths import TRACE_JSON
from distprof.contract.tables import COLLECTIVES, EVENTS, TAGS, TableRow
from distprof.recording.communication.backend_times import time_calls
from distprof.recording.communication.collective_call import CollectiveCall
from distprof.recording.communication.labels import CollectiveRecorder
from distprof.recording.passes.protocol import Pass, PassContext
from distprof.recording.run_directory import RankFolder
from distprof.recording.timeline import Timeline, WorkWaits


class TraceSteps(Pass):
    """Steps under the profiler."""

    name = "trace"
    slowed_by_compilation = True
    lost_elsewhere = "the timeline is lost: only the thread that began it can end it"

    def __init__(self, context: PassContext) -> None:
        self._timeline = Timeline(context.scopes, context.note, context.tags)
        self._collectives = CollectiveRecorder(context.scopes, lambda: (context.step(), context.phase()), context.guard)
        self._waits = WorkWaits()

    def start(self) -> None:
        self._timeline.start()
        if dist.is_available():
            self._collectives.start(timeline=self._timeline.recording)
            self._waits.start()

    def stop(self) -> None:
        self._waits.stop()
        self._collectives.stop()
        self._timeline.stop()

    def open_calls(self) -> Sequence[CollectiveCall]:
        return self._collectives.open_calls()

    def write(self, folder: RankFolder, steps: Sequence[TableRow], *, ended: bool, elsewhere: bool) -> None:
        traced = [step for step in steps if step["pass"] == self.name]
        if ended and not elsewhere:
            self._write_timeline(folder, traced)
        if ended and (traced or self._collectives.calls):
            folder.write_rows(COLLECTIVES, _collective_rows(self._collectives.calls))

    def _write_timeline(self, folder: RankFolder, traced: Sequence[TableRow]) -> None:
        content = self._timeline.write(folder.path / TRACE_JSON)
        time_calls(self._collectives.calls, content.backend_events)
        if content.rows:
            folder.files[TRACE_JSON] = len(content.rows)
            _add_steps(content.rows, traced)
            folder.write_rows(EVENTS, content.rows)


def _collective_rows(calls: Sequence[CollectiveCall]) -> list[TableRow]:
    names = [column.name for column in COLLECTIVES.columns if column not in TAGS]
    return [{name: getattr(call, name) for name in names} for call in calls]


def _add_steps(events: Sequence[TableRow], traced: Sequence[TableRow]) -> None:
    """Adds to each event the step in which it starts."""
    windows = [(step["start_ns"], step["end_ns"], step["step"]) for step in traced]
    for event in events:
        event["step"] = next((step for start, end, step in windows if start <= event["start_ns"] < end), None)
