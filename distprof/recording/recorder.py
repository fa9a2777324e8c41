"""`distprof.record` and the recorder of one rank: it finds the steps of the script and switches the passes.

It walks through the passes of the plan once and removes everything when the last is done. It never raises into the
script: a failure ends the recording with one line on stderr.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from distprof.contract.passes import WAIT
from distprof.contract.rank_json import Status
from distprof.model.compiled import never_compile
from distprof.model.scopes import Frame, in_backward
from distprof.process.topology import requested
from distprof.recording.evaluation import EvaluationJudge
from distprof.recording.failure import in_words
from distprof.recording.foreign_profiler import ForeignProfiler
from distprof.recording.hang.watch import HangWatch
from distprof.recording.pass_switch import PassSwitch
from distprof.recording.plan import StepPlan
from distprof.recording.rank_recording import RankRecording
from distprof.recording.script_error import failure_of, in_a_line
from distprof.recording.skipped_steps import SkippedSteps
from distprof.recording.step_every import StepEvery
from distprof.recording.step_finder import StepFinder
from distprof.recording.steps import CurrentStep
from distprof.recording.termination import Flush, TerminationWatch
from distprof.recording.turns import Waited

sequence_number = torch._C._autograd._get_sequence_nr
"""Of the next node that autograd makes on this thread."""
PATIENCE_S = 5.0
"""How long another thread may go on writing when the process is told to end."""


class Recorder:
    """Records the steps of this process into one rank folder of a run directory, as `record` describes it."""

    def __init__(self, run: Path, *, plan: StepPlan, sizes: Mapping[str, int], force: bool,
                 every: StepEvery | None = None, tentative: bool = False) -> None:
        self._tentative = tentative
        self.recording = False
        """True from `start` until the last pass is done."""
        self._step = CurrentStep()
        self._finder = StepFinder(every, lambda: self._step.number)
        self._rank = RankRecording(run, sizes=sizes, plan=plan, force=force, steps_found=self._finder.found)
        self._passes = PassSwitch(
            self._guarded, before_root=self._before_root, note=self._rank.note, tags=self._rank.tags,
            judge=EvaluationJudge(lambda: self._finder.is_training, lambda: self._step.number,
                                  lambda: self._evaluates).judge,
            step=lambda: self._step.number)
        self._skipped = SkippedSteps(lambda: self._num_optimizer_steps, self._guarded(self._after_skipped))
        self._num_optimizer_steps = 0
        self._listening = False
        self._optimizer_begins = self._guarded(self._passes.optimizer_begins)
        self._hang = HangWatch(self._rank, self._passes, self._step, lambda: self.recording)
        self._watch = TerminationWatch(self._on_termination, self._hang.on_signal)
        self._profiler = ForeignProfiler(self._guarded(self._pause), self._guarded(self._resume))
        self._began_at: int | None = None
        self._lock = threading.RLock()
        self._handles: list[Any] = []
        never_compile(type(self)._before_optimizer)
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

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """What runs inside is evaluation, with gradients too."""
        phases = self._passes.phases
        phases.num_evaluations += 1
        try:
            yield
        finally:
            phases.num_evaluations -= 1

    @property
    def _evaluates(self) -> bool:
        return self._passes.phases.num_evaluations > 0

    def close(self, error: BaseException | None = None) -> None:
        """Writes what there is, and ends all watching.

        Args:
            error: What ended the script; None: it came to its end.
        """
        failure = failure_of(error)
        if error is not None:
            self._hang.on_error(error)
        self._rank.failure = self._rank.failure or failure
        if self.recording:
            self._guarded(self._close)(error)
        elif failure is not None:
            self._rank.add_failure()
        self._stop_watching()

    # --- steps -------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        forget = weakref.WeakMethod(self._forget)  # what is registered here stays for the life of the process
        os.register_at_fork(after_in_child=lambda: (method := forget()) and method())
        self._watch.start()
        with self._while_writing():
            self._handles = [
                register_optimizer_step_pre_hook(self._before_optimizer),
                register_optimizer_step_post_hook(self._guarded(self._after_optimizer)),
            ]
            self._skipped.start()
            self._profiler.start()
            self._rank.open()
            self._hang.start()
            self._begin_step()

    def _begin_step(self) -> None:
        self._began_at = None
        if self._profiler.is_active():
            self._pause()
            self._began_at = sequence_number()
        wanted = WAIT if self._rank.progress.paused else self._rank.progress.pass_of(self._step.number)
        if self._finder.must_wait:  # what was switched on before that was known goes off again
            wanted = None
        if not self._rank.progress.paused:
            self._finder.waiting = wanted in (None, WAIT)
        if wanted != self._passes.running:
            self._passes.switch(wanted)
        # while waiting only optimizers are watched, once it is known that they end steps
        listening = wanted not in (None, WAIT) or self._finder.needs_modules
        if listening != self._listening:  # hooks that are on stay on: a module may be about to be called
            self._listening = listening
            (self._passes.scopes.add if listening else self._passes.scopes.remove)(self._step)
        self._step.begin(listening=listening)
        self._passes.current.restart_step()  # what we wrote since the last one is part of neither

    def _pause(self) -> None:
        """The script's own profiler begins, or runs on: in this step nothing of ours is on."""
        with self._while_writing():
            if not self._rank.progress.paused_steps:
                self._rank.say("the script runs its own torch.profiler: nothing is recorded in its steps")
            if self._passes.running not in (None, WAIT):
                self._passes.switch(WAIT)
            self._rank.progress.pause(self._step.number)

    def _resume(self) -> None:
        """The script's own profiler has ended; the step may begin only now."""
        if self._rank.progress.paused and self._began_at == sequence_number() and not self._profiler.is_active():
            with self._while_writing():
                self._rank.progress.resume(self._step.number)
                self._begin_step()

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
        self._rank.progress.step_ended(self._step.number - 1)
        following = self._rank.progress.pass_of(self._step.number)
        # before anything is written: the other ranks are here now, and the interpreter is free to answer them
        if following is not None and self._profiler.is_active():
            return  # what would be done now would be in the profile
        if following != running:
            self._rank.clock.sample(last=following is None)
        elif following == WAIT:
            self._rank.clock.meet()
        if following is None:
            self._finish("complete")
        elif following != running:
            self._passes.switch(None)
            self._rank.flush(self._passes, status="complete" if self._has_enough else "recording")

    def _before_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        """Marks the begin; in the arguments that it returns, if any, the closure is watched."""
        if torch.compiler.is_compiling() or not self.recording:
            return None
        self._optimizer_begins(optimizer)
        if self._passes.running in (None, WAIT):
            return None
        if callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": self._passes.around_closure(kwargs["closure"])}
        if len(args) > 1 and callable(args[1]):  # behind the optimizer itself
            return (args[0], self._passes.around_closure(args[1]), *args[2:]), kwargs
        return None

    def _after_optimizer(self, optimizer: Optimizer, *_: Any) -> None:
        self._num_optimizer_steps += 1
        if self._passes.optimizer_ends(optimizer):
            self._turn(optimizer)

    def _after_skipped(self, optimizer: Optimizer) -> None:
        self._turn(optimizer, skipped=True)

    def _turn(self, optimizer: Optimizer, *, skipped: bool = False) -> None:
        was_unclear, inside = self._finder.rule is None, in_backward()
        ended = self._finder.after_optimizer(optimizer, in_backward=inside, skipped=skipped)
        if not inside:  # there nothing can be switched: it may be a thread of autograd's
            self._after_event(ended=ended, was_unclear=was_unclear)

    def _after_event(self, *, ended: bool, was_unclear: bool) -> None:
        """Ends a step; where it is not clear yet what ends one, goes on looking."""
        if self._finder.must_wait:
            self._keep_looking()
        elif ended and was_unclear and len(waited := self._finder.waited()) > 1:
            self._end_waiting(waited)
        elif ended:
            self._end_step()

    def _keep_looking(self) -> None:
        """Several optimizers are alive, and no step ends until their pattern is known."""
        self._step.num_turns = self._finder.num_turns
        self._hang.step_ended(self._step.duration_ns() // (self._finder.num_turns or 1))
        if self._passes.running not in (None, WAIT):
            self._passes.start_over()
            self._begin_step()
        self._rank.clock.meet()

    def _end_waiting(self, waited: Sequence[Waited]) -> None:
        """It is clear now what ends a step: iterations that are over count as steps of the wait pass."""
        number = self.plan.steps[WAIT]
        with self._while_writing():
            for step in waited[-number:] if number else ():
                self._hang.step_ended(step.duration_ns)
                self._rank.add_step(self._step.end_waited(step))
            self._rank.progress.paused = False  # those steps are over, and nothing was on in them anyway
            if self._rank.progress.pass_of(self._step.number) != WAIT:
                self._rank.clock.sample()
            if self.recording:  # the thread may have written everything already
                self._begin_step()
        self._watch.resume()

    def _explicit_step(self) -> None:
        is_unclear = self._finder.must_wait
        if self._finder.explicit():
            if is_unclear and self._rank.progress.pass_of(self._step.number) != WAIT:
                self._begin_step()  # nothing was switched on in what ends here
            else:
                self._end_step()

    def _before_root(self, frame: Frame) -> None:
        was_unclear = self._finder.rule is None
        ended = self._finder.before_root(frame.site, evaluates=self._evaluates)
        self._after_event(ended=ended, was_unclear=was_unclear)
        if not ended and not self._step.number and not self._step.all_forward_calls and not self._finder.num_turns:
            self._rank.clock.sample() if self.plan.pass_of(0) != WAIT else self._rank.clock.meet()
            # what the script did before its first forward call is no part of the first step
            self._step.restart()
            self._finder.begins()
            self._passes.current.restart_step()

    # --- the end -----------------------------------------------------------------------------------------------

    def _close(self, error: BaseException | None) -> None:
        if self._finder.at_end() or (self._finder.rule == "forward" and self._step.forward_calls):
            self._end_step()  # it has no next one that ends it
        if self.recording:
            failure = in_a_line(error) if error is not None else None
            reason = failure or "the script ended"
            status, why = self._outcome(reason, failure)
            if not self._step.number and self._rank.is_superfluous(tentative=self._tentative):
                self._discard()
                return
            if not self._step.number:
                found = self._finder.why_none(self._step.all_forward_calls)
                why = f"{reason} and no step was found: {found}"
            if not self._step.number and self._rank.failure is None:
                hint = ("say with --step-every which optimizer, or how many optimizer steps, make one"
                        if self._finder.num_turns else
                        "call rec.step() at the end of each step, with distprof.record(...) as rec")
                self._rank.say(f"no step was recorded: expected optimizer.step() to end each step, {found}  "
                               f"hint: {hint}")
            self._rank.clock.sample(last=True)
            self._finish(status, why)

    def _discard(self) -> None:
        """Ends a recording that nobody asked for: the process did not train."""
        self._remove()
        self._rank.stop()

    def _finish(self, status: Status, why: str | None = None) -> None:
        with self._while_writing():
            if not self.recording:
                return
            self._remove()
            self._rank.flush(self._passes, status=status, why=why)
            self._hang.complete(self._rank.complete)
            self._rank.stop()
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
        return self._rank.progress.has_enough(self._step.number)

    def _outcome(self, reason: str, failure: str | None = None) -> tuple[Status, str | None]:
        """Status of a recording that ends here, and why steps are missing, or how the script failed."""
        if self._step.number and self._has_enough:
            return "complete", failure
        profiled = sum(step < self._step.number for step in self._rank.progress.paused_steps)
        under = f", {profiled} of them under the script's own profiler" if profiled else ""
        return "partial", f"{reason} after {self._step.number} of {self.plan.num_required + profiled} steps{under}"

    def _stop_watching(self) -> None:
        self._hang.stop()
        self._watch.stop()

    def _remove(self) -> None:
        """Removes every hook, mode and patched function."""
        self.recording = False
        for handle in self._handles:
            handle.remove()
        self._skipped.stop()
        self._profiler.stop()
        self._passes.scopes.remove(self._step)
        self._passes.switch(None)

    def _fail(self, error: Exception) -> None:
        self.recording = False
        what, hint = in_words(error)
        self._rank.say(f"recording stopped, training goes on: {what}{f'  hint: {hint}' if hint else ''}")
        if os.environ.get("DISTPROF_DEBUG"):
            sys.excepthook(type(error), error, error.__traceback__)
        for undo in (self._remove, lambda: self._rank.fail(what), self._rank.stop, self._stop_watching,
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
           sizes: Mapping[str, int] | None = None, step_every: str | int | None = None) -> Iterator[Recorder]:
    """Records this process into a run directory; every rank of a job calls it with the same path.

    Inside `distprof run` the recorder that runs already is used, so a script may have both.

    Args:
        out: The run directory; made if it does not exist.
        steps: Steps of each pass, like "wait=2,count=1,time=3,trace=6,arrivals=20".
        force: Replaces a run that is there.
        sizes: Model-parallel sizes like {"tp": 2}; without them they come from the device mesh.
        step_every: What ends a step: the class of an optimizer, like "Adam", or a number of optimizer steps. Without it
            the pattern in which optimizers step is found.

    Yields:
        The recorder; `rec.step()` ends a step where no optimizer does.

    Raises:
        UsageError: `steps` is no plan, `step_every` neither a class nor a number, or a DISTPROF_ variable is wrong.
    """
    if _active:
        yield _active[-1]
        return
    plan = StepPlan.parse(steps) if isinstance(steps, str) else steps
    every = StepEvery.requested(os.environ) if step_every is None else StepEvery.parse(step_every, where="step_every")
    recorder = Recorder(Path(out), plan=plan, force=force, every=every,
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
        _forget(recorder)


def begin(out: str, *, steps: str, force: bool, tentative: bool) -> Recorder | None:
    """Records this process until `end`, for a script that does not know of it.

    Args:
        out: The run directory.
        steps: Steps of each pass.
        force: Replaces a run that is there.
        tentative: Nothing is written if the process turns out not to train.

    Returns:
        The recorder; None where the script records itself already.

    Raises:
        UsageError: `steps` is no plan, or a DISTPROF_ variable gives no size.
    """
    if _active:
        return None
    recorder = Recorder(Path(out), plan=StepPlan.parse(steps), force=force, sizes=requested(os.environ),
                        every=StepEvery.requested(os.environ), tentative=tentative)
    _active.append(recorder)
    recorder.start()
    return recorder


def end(recorder: Recorder, error: BaseException | None) -> None:
    """Closes what `begin` began; see `Recorder.close`."""
    try:
        recorder.close(error)
    finally:
        _forget(recorder)


def forget_active() -> None:
    """In a forked child: the recordings of the parent are not its own."""
    _active.clear()


def _forget(recorder: Recorder) -> None:
    if recorder in _active:  # not so in a child that was forked meanwhile
        _active.remove(recorder)


def active() -> list[Recorder]:
    """The recorder that runs in this process, if any."""
    return list(_active)
