"""Steps in which every collective is labelled, and what the thread uses of its processor is noted."""

from __future__ import annotations

from collections.abc import Sequence

from distprof.contract.tables import TableRow
from distprof.recording.passes.protocol import Pass, PassContext
from distprof.recording.thread_usage import ThreadUsage


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
