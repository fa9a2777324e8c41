"""A later recording in a job: like the first one, but prepared in advance and written by another thread.

All ranks begin it in the same step. The script's thread only does what no other can: switching passes and ending the
profiler's session.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from distprof.freed_memory import give_back
from distprof.model.quiet import unnoticed
from distprof.recording.failure import in_words
from distprof.recording.known_job import KnownJob
from distprof.recording.plan import StepPlan
from distprof.recording.recorder import Recorder
from distprof.recording.steps.optimizer_hooks import OptimizerHooks
from distprof.recording.termination import PATIENCE_S, Flush
from distprof.threads import UnseenThread, is_scarce

READY_S = 0.05
"""Time in seconds that it may still take to prepare when its step begins."""


def later_recorder(folder: Path, plan: StepPlan, known: KnownJob) -> LaterRecorder:
    """Returns a recording that has begun to prepare itself.

    Args:
        folder: Its run directory.
        plan: Steps of each pass.
        known: What the first recording found out about the job.
    """
    recorder = LaterRecorder(folder, plan=plan, sizes={}, force=False, known=known)
    recorder.prepare()
    return recorder


class LaterRecorder(Recorder):
    """The recording of a request; `Windows` calls all of its methods on the thread of the steps."""

    _beside: UnseenThread | None = None
    """The thread that prepares or writes; None if there is none."""

    def prepare(self) -> None:
        """Does everything that `start` would otherwise have to do, if possible on another thread than the script's."""
        with unnoticed():
            self._walk.start()
            self._passes.sessions.prepare()
        self._do_beside(self._make_folder)

    def is_ready(self) -> bool:
        """Returns whether the preparation has ended."""
        return self._beside is None or self._beside.join(READY_S)

    def give_up(self, why: str) -> None:
        """Records nothing after all, and leaves a folder that says why."""
        self._walk.stop()
        self._do_beside(partial(self._mark, self._beside, why))

    def has_written(self, seconds: float = 0.0) -> bool:
        """Waits at most `seconds` until everything is written; returns whether it is: then nothing of it is left."""
        if self._beside is not None and not self._beside.join(seconds):
            return False
        self._beside = None
        return self.lets_go()

    def lets_go(self) -> bool:
        """Returns whether its folder is complete: then the next recording can begin, even if the summary is missing."""
        if self._beside is not None and self._beside.is_alive() and not self._rank.is_complete:
            return False
        if not self._passes.sessions.have_ended():
            self._passes.sessions.make_way()
            self._walk.stop()
        self._passes.sessions.forget_events()
        self._stop_watching()
        return True

    @property
    def num_steps(self) -> int:
        """Number of steps that have ended."""
        return self._step.number

    @property
    def optimizers(self) -> OptimizerHooks:
        """The hooks to which those of the first recording forward what they see."""
        return self._optimizers

    def evaluates(self, more: int) -> None:
        """Notes that the script has entered (1) or left (-1) an evaluation."""
        self._evaluates(more)

    def end_by_signal(self, reason: str, on_main_thread: bool) -> Flush:  # noqa: FBT001 (a callback)
        """Ends the recording because a signal ends the process; the first recording forwards it."""
        return self._on_termination(reason, on_main_thread)

    def forget(self) -> None:
        """Leaves everything to the parent; called in a forked child."""
        self._forget()

    # --- beside the script -----------------------------------------------------------------------------------------

    def _do_beside(self, work: Callable[[], None]) -> None:
        if is_scarce():
            work()
            return
        self._beside = UnseenThread(work)
        self._beside.start()

    def _make_folder(self) -> None:
        with suppress(Exception):  # `start` will notice
            self._rank.open()
            self._rank.clock.meet()

    def _mark(self, before: UnseenThread | None, why: str) -> None:
        with suppress(Exception):  # nobody waits for this
            if before is not None:
                before.join()
            self._rank.open()
            self._rank.fail(why)
        self._rank.stop()

    def _write_beside(self) -> None:
        try:
            with self._writing.beside():
                self._write("complete", None)
                give_back()
        except Exception as error:  # noqa: BLE001 (the training job always survives us)
            self._report(error, (partial(self._rank.fail, in_words(error)[0]), self._rank.stop))

    # --- in place of what the first recording does -----------------------------------------------------------------

    def _start(self) -> None:
        if self._known is not None and not self._known.signals_seen:
            self._watch.start()
        self._beside = None
        with self._writing.held():
            self._optimizers.start()
            self._compilations.start()
            self._rank.open()
            self._hang.start()
            self._rank.clock.sample()  # all ranks get here between the same two steps
            self._walk.begin_step()

    def _complete(self) -> None:
        with self._writing.held():
            if not self.recording:
                return
            self._remove()
            self._compilations.stop()
            self._rank.look_at_models(self._passes)
        if self._passes.sessions.have_ended():
            self._do_beside(self._write_beside)
        else:
            self._write_beside()

    def _on_termination(self, reason: str, on_main_thread: bool) -> Flush:  # noqa: FBT001 (a callback)
        if not self.recording and self._beside is not None:
            self._beside.join(PATIENCE_S)
        return super()._on_termination(reason, on_main_thread)
