"""The recording that a framework's callback begins and ends, or joins if one is already running."""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING

from distprof.recording.plan import VARIABLE as TOPICS
from distprof.recording.plan import asked_plan
from distprof.recording.steps.pattern import StepEvery
from distprof.terminal import say

if TYPE_CHECKING:
    from distprof.recording.recorder import Recorder

OUT = "DISTPROF_OUT"
STEPS = "DISTPROF_STEPS"


class JoinedRecording:
    """A recording that this object begins at most once, or a running one; only the constructor raises errors."""

    def __init__(self, out: str | os.PathLike[str] | None = None, *, steps: str | None = None,
                 topics: str | None = None, step_every: str | int | None = None, force: bool = False) -> None:
        """Checks the settings, without beginning to record.

        Args:
            out: The run directory; by default DISTPROF_OUT, without which nothing is recorded.
            steps: The plan, like "wait=2,count=1"; by default DISTPROF_STEPS, else the default plan.
            topics: What to record, like "operator,sync"; if neither this nor `steps` is given, DISTPROF_TOPICS.
            step_every: What ends a step, as in `distprof.record`.
            force: Whether to replace an existing run.

        Raises:
            UsageError: `steps` and `topics` do not form a plan, or `step_every` is neither a class nor a number.
        """
        self._given = os.fspath(out) if out is not None else None
        self._every, self._force = step_every, force
        self._plan = asked_plan(steps or "", topics or "") if steps or topics else None
        if step_every is not None:
            StepEvery.parse(step_every, where="step_every")
        self.recorder: Recorder | None = None
        """The running recorder, whoever started it; None before `open` and after `close`."""
        self.out: str | None = None
        """Its run directory; None until something is recorded."""
        self._began = False
        self._recording = ExitStack()
        self._evaluation = ExitStack()

    def open(self) -> None:
        """Begins or joins a recording; does nothing if it has already begun one."""
        if self._began or self.recorder is not None:
            return
        try:
            self._open()
        except Exception as error:  # noqa: BLE001 (a failure here must not stop the training job)
            say(f"rank {os.environ.get('RANK', '0')}: not recording: {error}")

    def _open(self) -> None:
        from distprof.recording.active import active, record

        running = active()
        if running:  # of `distprof run` or of a script with `distprof.record`, which end it
            self.recorder, self.out = running[-1], os.environ.get(OUT)
            return
        out = self._given or os.environ.get(OUT)
        if not out or os.environ.get("DISTPROF_DISABLE"):
            return
        plan = self._plan or asked_plan(os.environ.get(STEPS, ""), os.environ.get(TOPICS, ""))
        self._began = True
        self.recorder = self._recording.enter_context(
            record(out, steps=plan, step_every=self._every, force=self._force))
        self.out = out
        atexit.register(self._at_exit)

    def close(self, error: BaseException | None = None) -> None:
        """Ends a recording begun here; a joined recording continues.

        Args:
            error: The exception that ended the training, if any.
        """
        self.leave_evaluation()
        recorder, self.recorder = self.recorder, None
        atexit.unregister(self._at_exit)
        try:
            if recorder is not None and error is not None:
                recorder.close(error)
            self._recording.close()
        except Exception as ours:  # noqa: BLE001 (the training ends as it would have)
            say(f"rank {os.environ.get('RANK', '0')}: could not close the recording: {ours}")

    def _at_exit(self) -> None:
        """Ends the recording if an exception ended the script without a call of `close`."""
        self.close(getattr(sys, "last_value", None))

    def step(self) -> None:
        """Ends a step."""
        if self.recorder is not None:
            self.recorder.step()

    def enter_evaluation(self) -> None:
        """Marks what follows as evaluation."""
        if self.recorder is not None:
            self.leave_evaluation()
            mark: AbstractContextManager[None] = self.recorder.evaluation()
            self._evaluation.enter_context(mark)

    def leave_evaluation(self) -> None:
        """Ends the mark of evaluation."""
        self._evaluation.close()
