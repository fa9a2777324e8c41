"""When each step ends that follows the last pass: one time stamp per step, and nothing else is on."""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from typing import Any, Protocol

from torch.compiler import is_compiling
from torch.optim import Optimizer

from distprof.contract.paths import STEP_ENDS
from distprof.contract.step_ends import MAGIC
from distprof.recording.run_directory import WATCH
from distprof.recording.steps.finder import StepFinder
from distprof.recording.unnoticed import is_traced

EVERY_NS = 5_000_000_000
"""Stamps are written down so often, and at the end."""
RULES = ("optimizer", "pattern", "irregular", "given", "explicit")
"""Where optimizers, or the script, say alone when a step ends: others need hooks in modules."""


class Looks(Protocol):
    """What looks between steps whether something is to be recorded again."""

    def look(self, step: int) -> None:
        """Called when this step has ended."""


class LaterSteps:
    """Notes the end of each step between `start` and `stop`.

    Args:
        finder: Says what ends a step.
        folder: That of the rank.
    """

    def __init__(self, finder: StepFinder, folder: Callable[[], Path | None]) -> None:
        self.is_on = False
        self.windows: Looks | None = None
        """Looks between steps whether something is to be recorded again."""
        self._number = 0
        self._finder, self._find_folder = finder, folder
        self._folder: Path | None = None
        self._stamps, self._written_ns, self._thread, self._paused_ns = array("q"), 0, 0, 0

    @property
    def are_wanted(self) -> bool:
        """False where nothing tells when a step ends, or the user wants none."""
        return self._finder.rule in RULES and os.environ.get(WATCH) != "off"

    def start(self, first: int) -> None:
        """The first of these steps begins now, if they are wanted."""
        self._folder = self._find_folder()
        if self._folder is None or not self.are_wanted:
            return
        self._thread, self._written_ns = get_ident(), time.time_ns()
        self._stamps.extend((MAGIC, first, self._written_ns))
        self._number = first
        self.is_on = True

    def before_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        """Nothing is noted in front of a step."""

    def after_optimizer(self, optimizer: Optimizer, *, called: bool = True, skipped: bool = False) -> None:
        """An optimizer stepped. Whatever is wrong then ends this, and nothing else."""
        if not self.is_on or is_compiling() or is_traced() is not None:
            return
        try:
            if self._finder.rule != "explicit" and get_ident() == self._thread and self._finder.after_optimizer(
                    optimizer):
                self._step_ended()
        except Exception:  # noqa: BLE001 (the training job always survives us)
            self.is_on = False

    def explicit_step(self) -> None:
        """The script says that a step ended."""
        if self.is_on and self._finder.rule == "explicit":
            self._step_ended()

    def _step_ended(self) -> None:
        now = time.time_ns()
        self._stamps.append(now)
        if now - self._written_ns >= EVERY_NS:
            self._written_ns = now
            self._write()
        self._number += 1
        if self.windows is not None:
            self.windows.look(self._number - 1)

    def note(self, kind: str, text: str = "") -> None:
        """There is no place for notes in this file."""

    def pause(self) -> None:
        """Something else ends the steps from here on."""
        self.is_on, self._paused_ns = False, time.time_ns()

    def resume(self, first_step: int) -> None:
        """No longer; this step begins now. Those in between count as equally long."""
        before, now, missed = self._paused_ns, time.time_ns(), first_step - self._number
        self._stamps.extend(before + (now - before) * (place + 1) // missed for place in range(missed))
        self._number, self.is_on = first_step, True

    def stop(self) -> None:
        """Writes what is not written yet; no more steps are noted."""
        if self.is_on:
            self.is_on = False
            self._write()

    def forget(self) -> None:
        """In a forked child: the parent notes its own steps."""
        self.is_on = False

    def _write(self) -> None:
        """Appends; the folder may be gone by now, which is no reason to stop a job."""
        stamps, self._stamps = self._stamps, array("q")
        try:
            if self._folder is not None:
                with (self._folder / STEP_ENDS).open("ab") as file:
                    file.write(stamps.tobytes())
        except OSError:
            self.is_on = False
