"""The instruments of a rank and which of them a pass switches on; steps come in, what they saw stays here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from distprof.counting.count_pass import CountPass
from distprof.model.compiled import ForcedEager
from distprof.model.modules import ModuleMap
from distprof.model.scopes import Frame, ModuleScopes
from distprof.recording.communication.labels import CollectiveRecorder
from distprof.recording.communication.work_waits import Awaits
from distprof.recording.timeline import Timeline
from distprof.timing.time_pass import TimePass

Guard = Callable[[Callable[..., None]], Callable[..., None]]


class Instruments:
    """Counter, timers, timeline and collective recorder of one rank."""

    def __init__(self, guard: Guard, *, before_root: Callable[[Frame], None], note: Callable[[str], None],
                 tags: Callable[[], dict[str, Any]], step: Callable[[], int]) -> None:
        self.modules = ModuleMap()
        self.scopes = ModuleScopes(self.modules, guard, before_root)
        self.phase: str | None = None
        """"optimizer" inside optimizer.step(), else None."""
        self.count = CountPass(self.scopes, lambda: self.phase)
        self._eager = ForcedEager()
        self._compilations = 0
        self._note = note
        self.time = TimePass(self.scopes, guard)
        self.timeline = Timeline(self.scopes, note, tags)
        self.collectives = CollectiveRecorder(self.scopes, lambda: (step(), self.phase), guard)
        self._awaits = Awaits()
        self.running: str | None = None
        """The pass that is on."""

    def switch(self, name: str | None) -> None:
        """Ends the running pass and begins another, or none."""
        ending, self.running = self.running, None
        if ending == "count":
            self._eager.stop()
            self.count.stop()
        elif ending == "time":
            self.time.stop()
        elif ending == "trace":
            self._awaits.stop()
            self.collectives.stop()
            self.timeline.stop()
        self._begin(name)

    def _begin(self, name: str | None) -> None:
        self.running = name
        if name == "count":
            self.count.start()
            self._eager.start()  # a compiled graph does not show the operators it was made from
        elif name == "time":
            self.time.start()
        elif name == "trace":
            self.timeline.start()
            if dist.is_available():
                self.collectives.start(timeline=self.timeline.recording)
                self._awaits.start()

    def next_step(self) -> None:
        """Tells the running pass that a step ended."""
        if self.running == "count":
            self.count.next_step()
        elif self.running == "time":
            self.time.next_step()
        compiled, self._compilations = self.scopes.compilations - self._compilations, self.scopes.compilations
        if compiled and self.running in ("time", "trace"):
            self._note(f"torch.compile was at work in a step of the {self.running} pass, and that step is in the means")

    def restart_step(self) -> None:
        """Tells the running pass that the step begins only now."""
        if self.running == "time":
            self.time.restart_step()

    def optimizer_begins(self) -> None:
        """Called in front of every optimizer.step()."""
        self.phase = "optimizer"
        if self.running == "time":
            self.time.optimizer_begins()

    def optimizer_ends(self) -> None:
        """Called behind it."""
        self.phase = None
        if self.running == "time":
            self.time.optimizer_ends()
