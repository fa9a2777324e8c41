"""`distprof.record` and the recorder of one rank: it finds the steps of the script and switches the passes.

It walks through the passes of the plan once and removes everything when the last is done. It never raises into the
script: a failure ends the recording with one line on stderr.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from distprof.contract.passes import WAIT
from distprof.contract.rank_json import Status
from distprof.model.compiled import never_compile
from distprof.model.scopes import Frame
from distprof.process.topology import requested
from distprof.recording.failure import in_words
from distprof.recording.hang.watch import HangWatch
from distprof.recording.pass_switch import PassSwitch
from distprof.recording.plan import StepPlan
from distprof.recording.rank_recording import RankRecording
from distprof.recording.script_error import in_a_line
from distprof.recording.steps import CurrentStep, StepFinder
from distprof.recording.termination import Flush, TerminationWatch

PATIENCE_S = 5.0
"""How long another thread may go on writing when the process is told to end."""


class Recorder:
    """Records the steps of this process into one rank folder of a run directory, as `record` describes it."""

    def __init__(self, run: Path, *, plan: StepPlan, sizes: Mapping[str, int], force: bool) -> None:
        self.recording = False
        """True from `start` until the last pass is done."""
        self._rank = RankRecording(run, sizes=sizes, plan=plan, force=force)
        self._finder = StepFinder()
        self._step = CurrentStep()
        self._passes = PassSwitch(
            self._guarded, before_root=self._before_root, note=self._rank.note, tags=self._rank.tags,
            step=lambda: self._step.number)
        self._hang = HangWatch(self._rank, self._passes, self._step, lambda: self.recording)
        self._watch = TerminationWatch(self._on_termination, self._hang.on_signal)
        self._lock = threading.RLock()
        self._handles: list[Any] = []
        self._writing = False

    @property
    def plan(self) -> StepPlan:
        """Steps of each pass."""
        return self._rank.plan

    def start(self) -> None:
        """Begins with the first step of the plan."""
        self.recording = True
        self._guarded(self._start)()
        self._watch.resume()

    def step(self) -> None:
        """Ends a step by hand; from then on optimizer steps end none."""
        if self.recording:
            self._guarded(self._explicit_step)()

    def close(self, error: BaseException | None = None) -> None:
        """Writes what there is, and ends all watching.

        Args:
            error: What ended the script; None: it came to its end.
        """
        if error is not None:
            self._hang.on_error(error)
        if self.recording:
            self._guarded(self._close)(error)
        self._stop_watching()

    # --- steps -------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        forget = weakref.WeakMethod(self._forget)  # what is registered here stays for the life of the process
        os.register_at_fork(after_in_child=lambda: (method := forget()) and method())
        self._watch.start()
        with self._while_writing():
            self._handles = [
                register_optimizer_step_pre_hook(self._guarded(lambda *_: self._passes.optimizer_begins())),
                register_optimizer_step_post_hook(self._guarded(self._after_optimizer)),
            ]
            self._rank.open()
            self._hang.start()
            self._begin_step()

    def _begin_step(self) -> None:
        wanted = self.plan.pass_of(self._step.number)
        if wanted != self._passes.running:
            self._passes.switch(wanted)
        self._passes.scopes.remove(self._step)
        # while waiting only the optimizer is watched, once there is one
        listening = wanted != WAIT or self._finder.rule in (None, "forward")
        if listening:
            self._passes.scopes.add(self._step)
        self._step.begin(listening=listening)
        self._passes.current.restart_step()  # what we wrote since the last one is part of neither

    def _end_step(self) -> None:
        with self._while_writing():
            if self.recording:  # the thread may have written everything already
                self._write_step()
            if self.recording:
                self._begin_step()  # a pass that is on by half cannot be taken away
        self._watch.resume()

    def _write_step(self) -> None:
        duration_ns = self._step.duration_ns()
        running = self._passes.running
        self._hang.step_ended(duration_ns)
        self._passes.next_step()
        self._rank.add_step(self._step.end(running or WAIT, duration_ns))
        following = self.plan.pass_of(self._step.number)
        # before anything is written: the other ranks are here now, and the interpreter is free to answer them
        if following != running:
            self._rank.clock.sample(last=following is None)
        elif following == WAIT:
            self._rank.clock.meet()
        if following is None:
            self._finish("complete")
        elif following != running:
            self._passes.switch(None)
            self._rank.flush(self._passes, status="complete" if self._has_enough else "recording")

    def _after_optimizer(self, optimizer: Optimizer, *_: Any) -> None:
        self._passes.optimizer_ends()
        if self._finder.after_optimizer(optimizer):
            self._end_step()

    def _explicit_step(self) -> None:
        if self._finder.explicit():
            self._end_step()

    def _before_root(self, frame: Frame) -> None:
        if self._finder.before_root(frame.site):
            self._end_step()
        elif not self._step.number and not self._step.all_forward_calls:
            self._rank.clock.sample() if self.plan.pass_of(0) != WAIT else self._rank.clock.meet()
            # what the script did before its first forward call is no part of the first step
            self._step.restart()
            self._passes.current.restart_step()

    # --- the end -----------------------------------------------------------------------------------------------

    def _close(self, error: BaseException | None) -> None:
        if self._finder.rule == "forward" and self._step.forward_calls:
            self._end_step()  # the last step of inference has no next one that ends it
        if self.recording:
            failure = in_a_line(error) if error is not None else None
            reason = failure or "the script ended"
            status, why = self._outcome(reason, failure)
            if not self._step.number:
                found = self._finder.why_none(self._step.all_forward_calls)
                why = f"{reason} and no step was found: {found}"
                self._rank.say(f"no step was recorded: expected optimizer.step() to end each step, {found}  hint: call "
                               f"rec.step() at the end of each step, with distprof.record(...) as rec")
            self._rank.clock.sample(last=True)
            self._finish(status, why)

    def _finish(self, status: Status, why: str | None = None) -> None:
        with self._while_writing():
            if not self.recording:
                return
            self._remove()
            self._rank.flush(self._passes, status=status, why=why)
            self._hang.complete(self._rank.complete)
            self._rank.clock.stop()
        if self._hang.stays:  # until the script ends
            self._watch.resume()
        else:
            self._stop_watching()  # a SIGTERM until here waited for the files

    @contextmanager
    def _while_writing(self) -> Iterator[None]:
        """Puts a SIGTERM off: the thread that watches for it writes the same files, and so would its handler."""
        outer, self._writing = self._writing, True
        try:
            with self._lock:
                yield
        finally:
            self._writing = outer

    def _on_termination(self, reason: str, on_main_thread: bool) -> Flush:  # noqa: FBT001 (a callback)
        """Called by a signal handler, or by a thread while the main thread hangs."""
        if on_main_thread and self._writing:
            return Flush.LATER  # the signal interrupted a write, which has to end first
        if on_main_thread and self.recording and self._passes.current.in_operator():
            return Flush.SOON
        if not on_main_thread:
            self._hang.on_hanging()
        try:
            if not self._lock.acquire(timeout=PATIENCE_S):
                raise TimeoutError("a write into the run directory does not end")
            try:
                self._finish_early(reason, on_main_thread)
            finally:
                self._lock.release()
        except Exception as error:  # noqa: BLE001 (the process is about to end; its signal must not be held up)
            self._rank.say(f"what was recorded could not be written: {error}")
        return Flush.DONE

    def _finish_early(self, reason: str, on_main_thread: bool) -> None:  # noqa: FBT001 (as `_on_termination`)
        status, why = self._outcome(reason)
        if self.recording and on_main_thread:
            self._finish(status, why)
        elif self.recording:
            self.recording = False
            if (lost := self._passes.current.lost_elsewhere) is not None:
                self._rank.note(lost)
            self._rank.flush(self._passes, status=status, why=why, elsewhere=True)
            self._hang.complete(self._rank.complete)

    @property
    def _has_enough(self) -> bool:
        """True where the passes that are still to come may be missing."""
        return self._step.number >= self.plan.num_required

    def _outcome(self, reason: str, failure: str | None = None) -> tuple[Status, str | None]:
        """Status of a recording that ends here, and why steps are missing, or how the script failed."""
        if self._step.number and self._has_enough:
            return "complete", failure
        return "partial", f"{reason} after {self._step.number} of {self.plan.num_required} steps"

    def _stop_watching(self) -> None:
        self._hang.stop()
        self._watch.stop()

    def _remove(self) -> None:
        """Removes every hook, mode and patched function."""
        self.recording = False
        for handle in self._handles:
            handle.remove()
        self._passes.scopes.remove(self._step)
        self._passes.switch(None)

    def _fail(self, error: Exception) -> None:
        self.recording = False
        what, hint = in_words(error)
        self._rank.say(f"recording stopped, training goes on: {what}{f'  hint: {hint}' if hint else ''}")
        if os.environ.get("DISTPROF_DEBUG"):
            sys.excepthook(type(error), error, error.__traceback__)
        for undo in (self._remove, lambda: self._rank.fail(what), self._rank.clock.stop, self._stop_watching,
                     self._watch.resume):
            try:
                undo()
            except Exception:  # noqa: BLE001 (the failure is reported already; nothing may reach the script)
                continue

    def _forget(self) -> None:
        # a forked child, a data loader worker for instance, must not write into our folder
        self.recording = self._hang.stays = False
        self._rank.clock.forget()

    def _guarded(self, function: Callable[..., None]) -> Callable[..., None]:
        """Wraps what the script's thread calls: an error ends the recording and nothing else."""

        def guarded(*args: Any, **kwargs: Any) -> None:
            # first: a compiler that traces this must not depend on whether we record
            if torch.compiler.is_compiling() or not self.recording:
                return
            try:
                function(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 (the training job always survives us)
                self._fail(error)

        never_compile(guarded)
        return guarded


_active: list[Recorder] = []


@contextmanager
def record(out: str | os.PathLike[str], *, steps: str | StepPlan = StepPlan(), force: bool = False,  # noqa: B008
           sizes: Mapping[str, int] | None = None) -> Iterator[Recorder]:
    """Records this process into a run directory; every rank of a job calls it with the same path.

    Inside `distprof run` the recorder that runs already is used, so a script may have both.

    Args:
        out: The run directory; made if it does not exist.
        steps: Steps of each pass, like "wait=2,count=1,time=3,trace=6,arrivals=20".
        force: Replaces a run that is there.
        sizes: Model-parallel sizes like {"tp": 2}; without them they come from the device mesh.

    Yields:
        The recorder; `rec.step()` ends a step where no optimizer does.

    Raises:
        UsageError: `steps` is no plan, or a DISTPROF_ variable gives no size.
    """
    if _active:
        yield _active[-1]
        return
    plan = StepPlan.parse(steps) if isinstance(steps, str) else steps
    recorder = Recorder(Path(out), plan=plan, force=force,
                        sizes={**requested(os.environ), **(sizes or {})})
    _active.append(recorder)
    try:
        if not os.environ.get("DISTPROF_DISABLE"):
            recorder.start()
        yield recorder
    except BaseException as error:
        recorder.close(error)
        raise
    finally:
        recorder.close()
        _active.remove(recorder)


def active() -> list[Recorder]:
    """The recorder that runs in this process, if any."""
    return list(_active)
