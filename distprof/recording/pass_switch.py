"""Switches the passes of a rank on and off, and forwards the events of a step to the active pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import update_wrapper
from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from distprof.contract.passes import WAIT
from distprof.model.modules import ModuleMap, Site
from distprof.model.scopes import Frame, Guard, ModuleScopes
from distprof.recording.communication.c10d import RunningWorks
from distprof.recording.communication.collective_call import CollectiveCall
from distprof.recording.communication.labels import CollectiveRecorder
from distprof.recording.line_sampler import LineSampler
from distprof.recording.passes.protocol import Pass, PassContext
from distprof.recording.passes.registry import LIGHT_CLASSES, PASS_CLASSES
from distprof.recording.steps.phases import Phases
from distprof.recording.tracing.profiler_sessions import ProfilerSessions


class PassSwitch:
    """All passes of one recorder, of which at most one is active."""

    def __init__(self, guard: Guard, *, before_root: Callable[[Frame], None], judge: Callable[[Frame], None],
                 note: Callable[[str], None], tags: Callable[[], dict[str, Any]], step: Callable[[], int],
                 folder: Callable[[], Path | None], are_work: Callable[[Site], bool],
                 is_light: Callable[[], bool] = lambda: False, modules: ModuleMap | None = None) -> None:
        """Begins with no active pass.

        Args:
            guard: Wraps callbacks that torch calls.
            before_root: As in `ModuleScopes`.
            judge: As in `ModuleScopes`.
            note: Prints a line and keeps it in rank.json.
            tags: Returns the fields that every file carries.
            step: Returns the running step.
            folder: Returns the current folder of this rank's files.
            are_work: Whether calls of a root without gradients are part of every step.
            is_light: Whether the rank is recorded lightly; asked once, when the first pass after the wait pass begins.
            modules: Modules that are already known.
        """
        self._is_light, self._classes, self._decided = is_light, PASS_CLASSES, False
        self.modules = ModuleMap() if modules is None else modules
        self.scopes = ModuleScopes(self.modules, guard, before_root, judge=judge)
        self.phases = Phases(self.scopes)
        self.running: str | None = None
        """Name of the active pass; None if there is none."""
        self.labels_collectives = False
        """True once a pass that labels collectives was active."""
        self._note = note
        self._compilations = 0
        self._guard = guard
        works = RunningWorks(guard)
        self.collectives = CollectiveRecorder(self.scopes, lambda: (step(), self.phases.now()), works, guard)
        """Shared by all passes, so that collectives are numbered without gaps."""
        self.lines = LineSampler(step)
        self.sessions = ProfilerSessions(works)
        self._context = PassContext(scopes=self.scopes, guard=guard, note=note, tags=tags, step=step, folder=folder,
                                    phase=self.phases.now, are_work=are_work, collectives=self.collectives,
                                    lines=self.lines, sessions=self.sessions)
        self._passes = self._new_passes()
        self._off = Pass(self._context)

    @property
    def passes(self) -> Iterable[Pass]:
        """All passes, in the order of the plan."""
        return self._passes.values()

    @property
    def current(self) -> Pass:
        """The active pass, or one that does nothing."""
        return self._passes.get(self.running, self._off)

    def switch(self, name: str | None) -> None:
        """Ends the active pass and begins another, or none."""
        ending, self.running = self.current, None
        ending.stop()
        if name not in (None, WAIT) and not self._decided:
            self._decide()
        self.running = name
        self.labels_collectives |= self.current.labels_collectives
        self.current.start()

    def _decide(self) -> None:
        self._decided = True
        if self._is_light():
            self._classes = LIGHT_CLASSES
            self._passes = self._new_passes()

    def _new_passes(self) -> dict[str | None, Pass]:
        return {kind.name: kind(self._context) for kind in self._classes}

    def start_over(self) -> None:
        """Drops what was recorded, before any step has ended."""
        self.switch(None)
        self.collectives.forget()
        self.lines.forget()
        self._passes = self._new_passes()
        self.labels_collectives = False

    def next_step(self) -> None:
        """Ends a step."""
        self.current.next_step()
        self.scopes.next_step()
        compiled, self._compilations = self.scopes.compilations - self._compilations, self.scopes.compilations
        if compiled and self.current.slowed_by_compilation:
            self._note(f"torch.compile compiled during a step of the {self.running} pass, so means include that time "
                       "(distprof waits shows why)")

    def optimizer_begins(self, optimizer: Optimizer) -> None:
        """Called before every optimizer.step()."""
        if self.phases.optimizer_begins(optimizer):
            self.current.optimizer_begins()

    def optimizer_ends(self, optimizer: Optimizer) -> bool:
        """Called after every optimizer.step(); true if it was not called by another optimizer."""
        outermost = self.phases.optimizer_ends(optimizer)
        if outermost:
            self.current.optimizer_ends()
        return outermost

    def around_closure(self, closure: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps an optimizer's closure, so that what runs in it does not count as the optimizer."""
        begins, ends = self._guard(self._closure_begins), self._guard(self._closure_ends)

        def around(*args: Any, **kwargs: Any) -> Any:
            begins()
            try:
                return closure(*args, **kwargs)
            finally:
                ends()

        return update_wrapper(around, closure)

    def _closure_begins(self) -> None:
        self.phases.closure_begins()
        self.current.closure_begins()

    def _closure_ends(self) -> None:
        self.current.closure_ends()
        self.phases.closure_ends()

    def open_calls(self) -> list[CollectiveCall]:
        """Returns collectives that have not ended, as far as that is known."""
        return self.collectives.open_calls()
