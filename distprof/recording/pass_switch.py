"""Switches the passes of a rank on and off, and hands what happens in a step to the one that is on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from distprof.model.modules import ModuleMap
from distprof.model.scopes import Frame, Guard, ModuleScopes
from distprof.recording.communication.collective_call import CollectiveCall
from distprof.recording.communication.labels import CollectiveRecorder
from distprof.recording.passes.protocol import Pass, PassContext
from distprof.recording.passes.registry import PASS_CLASSES


class PassSwitch:
    """All passes of one recorder, at most one of them on."""

    def __init__(self, guard: Guard, *, before_root: Callable[[Frame], None], note: Callable[[str], None],
                 tags: Callable[[], dict[str, Any]], step: Callable[[], int]) -> None:
        self.modules = ModuleMap()
        self.scopes = ModuleScopes(self.modules, guard, before_root)
        self.phase: str | None = None
        """`optimizer` inside optimizer.step(), else None."""
        self.running: str | None = None
        """The pass that is on."""
        self.labels_collectives = False
        """True once a pass that does was on."""
        self._note = note
        self._compilations = 0
        self.collectives = CollectiveRecorder(self.scopes, lambda: (step(), self.phase), guard)
        """One for all passes: it numbers collectives without a gap."""
        context = PassContext(scopes=self.scopes, guard=guard, note=note, tags=tags, step=step,
                              phase=lambda: self.phase, collectives=self.collectives)
        self._passes: dict[str | None, Pass] = {kind.name: kind(context) for kind in PASS_CLASSES}
        self._off = Pass(context)

    @property
    def passes(self) -> Iterable[Pass]:
        """In the order of the plan."""
        return self._passes.values()

    @property
    def current(self) -> Pass:
        """The pass that is on, or one that does nothing."""
        return self._passes.get(self.running, self._off)

    def switch(self, name: str | None) -> None:
        """Ends the running pass and begins another, or none."""
        ending, self.running = self.current, None
        ending.stop()
        self.running = name
        self.labels_collectives |= self.current.labels_collectives
        self.current.start()

    def next_step(self) -> None:
        """A step ended."""
        self.current.next_step()
        compiled, self._compilations = self.scopes.compilations - self._compilations, self.scopes.compilations
        if compiled and self.current.slowed_by_compilation:
            self._note(f"torch.compile was at work in a step of the {self.running} pass, and that step is in the means")

    def optimizer_begins(self) -> None:
        """Called in front of every optimizer.step()."""
        self.phase = "optimizer"
        self.current.optimizer_begins()

    def optimizer_ends(self) -> None:
        """Called behind it."""
        self.phase = None
        self.current.optimizer_ends()

    def open_calls(self) -> list[CollectiveCall]:
        """Collectives that have not ended, as far as that is seen."""
        return self.collectives.open_calls()
