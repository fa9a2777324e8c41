"""The memory pass: the profiler's timeline with every allocation, and what the script held meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distprof.contract.paths import ENDED_EARLY, MEMORY_JSON
from distprof.contract.tables import TENSORS, USES, TableRow
from distprof.model.scopes import Frame
from distprof.recording.passes.held_tensors import HeldTensors
from distprof.recording.passes.protocol import Pass, PassContext
from distprof.recording.run_directory import RankFolder
from distprof.recording.tensor_uses import MOST_EVENTS, tensor_uses
from distprof.recording.tracing.profiler_room import VARIABLE, ProfilerRoom
from distprof.recording.tracing.timeline import Timeline
from distprof.units import size


class MemorySteps(Pass):
    """Steps in which the profiler records allocations."""

    name = "memory"
    slowed_by_compilation = True
    lost_elsewhere = "the timeline of allocations is lost: only the thread that started it can end it"

    def __init__(self, context: PassContext) -> None:
        self._scopes, self._note, self._step = context.scopes, context.note, context.step
        self._ended: dict[str, Any] = {}
        """What the trace says where the pass ended early."""
        self._timeline = Timeline(context.scopes, context.sessions, context.note,
                                  lambda: context.tags() | self._ended, memory=True)
        self._works = context.sessions.works
        self._held = HeldTensors(context.scopes.modules)
        self._room = ProfilerRoom()

    def start(self) -> None:
        self._held.start()
        self._room.start()
        self._timeline.start()
        self._works.watch()
        self._scopes.add(self._held)
        self._scopes.add(self)

    def stop(self) -> None:
        self._scopes.remove(self)
        self._scopes.remove(self._held)
        self._works.stop_watching()
        self._timeline.stop()

    def enter(self, frame: Frame) -> None:
        """A module is called."""
        if self._timeline.recording and self._room.is_full_now_and_then():
            self._end_early(self._step())

    def exit(self, frame: Frame, _args: Any, _kwargs: Any, _result: Any) -> None:
        """Nothing to do."""

    def _end_early(self, step: int) -> None:
        taken, most = self._room.taken_bytes, self._room.most_bytes
        self._ended = {ENDED_EARLY: {"step": step, "taken_bytes": taken, "most_bytes": most}}
        self._timeline.end()
        self._note(f"the memory pass stopped in step {step}: its records would take {size(taken)}, and the limit is "
                   f"{size(most)}. Later allocations and frees are unknown. Fewer steps (memory=1) take less; "
                   f"{VARIABLE}={size(2 * taken).replace(' ', '')} allows more")

    def _look(self) -> None:
        if self._timeline.recording:
            self._held.look()

    def next_step(self) -> None:
        self._look()
        if self._timeline.recording and self._room.is_full():
            self._end_early(self._step())

    def optimizer_begins(self) -> None:
        """Gradients are complete; some scripts drop them before the step ends."""
        self._look()

    def closure_begins(self) -> None:
        self._timeline.closure_begins()

    def closure_ends(self) -> None:
        self._timeline.closure_ends()

    def write(self, folder: RankFolder, steps: Sequence[TableRow], *, ended: bool, elsewhere: bool) -> None:
        is_due = ended and not elsewhere and not self._timeline.is_written
        uses = self._uses() if is_due else []
        own = [step for step in steps if step["pass"] == self.name]
        if is_due and self._timeline.save(folder.path / MEMORY_JSON, own):
            folder.files[MEMORY_JSON] = None
            folder.write_rows(TENSORS, self._held.rows)
            if uses:
                folder.write_rows(USES, uses)

    def _uses(self) -> list[TableRow]:
        try:
            found = tensor_uses(self._timeline.events())
        except (AttributeError, RuntimeError, TypeError) as error:  # torch promises nothing of its own events
            self._note(f"this torch does not report when allocations were last used: {error}")
            return []
        if found is None:
            self._note(f"the memory pass recorded more than {MOST_EVENTS} events, so last uses of allocations were not "
                       "computed. Fewer steps (memory=1) take less")
        return found or []
