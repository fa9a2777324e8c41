"""The memory pass: the profiler's timeline with every allocation, and what the script held meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

from distprof.contract.paths import MEMORY_JSON
from distprof.contract.tables import TENSORS, TableRow
from distprof.recording.passes.held_tensors import HeldTensors
from distprof.recording.passes.protocol import Pass, PassContext
from distprof.recording.run_directory import RankFolder
from distprof.recording.timeline import Timeline


class MemorySteps(Pass):
    """Steps in which the profiler records allocations."""

    name = "memory"
    slowed_by_compilation = True
    lost_elsewhere = "the timeline of allocations is lost: only the thread that began it can end it"

    def __init__(self, context: PassContext) -> None:
        self._scopes = context.scopes
        self._timeline = Timeline(context.scopes, context.sessions, context.note, context.tags, memory=True)
        self._works = context.sessions.works
        self._held = HeldTensors(context.scopes.modules)

    def start(self) -> None:
        self._held.start()
        self._timeline.start()
        self._works.watch()
        self._scopes.add(self._held)

    def stop(self) -> None:
        self._scopes.remove(self._held)
        self._works.stop_watching()
        self._timeline.stop()

    def next_step(self) -> None:
        self._held.look()

    def optimizer_begins(self) -> None:
        """Gradients are complete; some scripts drop them before the step ends."""
        self._held.look()

    def closure_begins(self) -> None:
        self._timeline.closure_begins()

    def closure_ends(self) -> None:
        self._timeline.closure_ends()

    def write(self, folder: RankFolder, steps: Sequence[TableRow], *, ended: bool, elsewhere: bool) -> None:
        if ended and not elsewhere and not self._timeline.is_written:
            content = self._timeline.write(folder.path / MEMORY_JSON)
            if content.rows:
                folder.files[MEMORY_JSON] = len(content.rows)
                folder.write_rows(TENSORS, self._held.rows)
