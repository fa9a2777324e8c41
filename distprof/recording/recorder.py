"""The recorder of one rank: connects what observes the script with what writes the rank's folder, and ends both.

It goes through the passes of the plan once and removes everything after the last. It never raises into the script: a
failure ends the recording with one line on stderr.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from torch.compiler import is_compiling

from distprof.contract.rank_json import Status
from distprof.freed_memory import give_back
from distprof.model.compiled import never_compile
from distprof.model.quiet import is_traced, unnoticed
from distprof.needs import expect_linux, import_torch
from distprof.recording.chosen_ranks import ChosenRanks
from distprof.recording.compile_log import CompileLog
from distprof.recording.failure import failure_of, in_a_line, in_words
from distprof.recording.hang.watch import HangWatch
from distprof.recording.known_job import KnownJob
from distprof.recording.pass_switch import PassSwitch
from distprof.recording.plan import StepPlan
from distprof.recording.rank_recording import RankRecording
from distprof.recording.step_walk import StepWalk
from distprof.recording.steps.current_step import CurrentStep
from distprof.recording.steps.evaluation import CallsWithoutGradient, EvaluationJudge
from distprof.recording.steps.finder import StepFinder
from distprof.recording.steps.optimizer_hooks import OptimizerHooks
from distprof.recording.steps.pattern import VARIABLE, StepEvery
from distprof.recording.steps.step_thread import StepThread
from distprof.recording.termination import Flush, TerminationWatch, Writing
from distprof.recording.watch.rank_watch import RankWatch
from distprof.recording.watch.windows import LaterRecording, Windows
from distprof.units import counted

MakesLater = Callable[[Path, StepPlan, KnownJob], LaterRecording]
"""Creates and prepares a recording of the same job into another run directory."""


class Recorder:
    """Records the steps of this process into one rank folder of a run directory, as described in `record`."""

    def __init__(self, run: Path, *, plan: StepPlan, sizes: Mapping[str, int], force: bool,
                 every: StepEvery | None = None, tentative: bool = False, ranks: ChosenRanks | None = None,
                 known: KnownJob | None = None, make_later: MakesLater | None = None) -> None:
        self._tentative = tentative
        self._known = known
        self._make_later = make_later
        self.recording = False
        """True from `start` until the last pass is done."""
        self._calls = known.calls if known else CallsWithoutGradient()
        self._step = CurrentStep(self._calls)
        self._finder = known.finder if known else StepFinder(every, lambda: self._step.number)
        self._compilations = CompileLog(step=lambda: self._step.number if self.recording else None,
                                        find=lambda module: self._passes.modules.find(module),
                                        note=lambda line: self._rank.note(line))
        self._rank = RankRecording(run, sizes=sizes, plan=plan, force=force, steps_found=self._finder.found,
                                   compilations=self._compilations, ranks=ranks, known=known.rank if known else None)
        self._judge = known.judge if known else EvaluationJudge(
            lambda: self._finder.is_training, lambda: self._step.number, self._calls, lambda: self._walk.evaluates)
        self._passes = PassSwitch(
            self._guarded, before_root=lambda frame: self._walk.before_root(frame), note=self._rank.note,
            tags=self._rank.tags, judge=self._judge.judge, are_work=self._calls.are_work,
            step=lambda: self._step.number, folder=lambda: self._rank.rank_folder,
            is_light=self._rank.is_light, modules=known.modules if known else None)
        self.later = RankWatch(self._finder, self._passes, self._rank, self._calls, wanted=known is None)
        """Logs the steps after the last pass."""
        self._windows = self.later.windows = Windows(
            run, lambda: self._rank.rank_folder, self.later, prepare=self._window, say=self._rank.say)
        self._thread = known.thread if known else StepThread(self._rank.note)
        self._passes.scopes.left_out = self._thread.left_out
        self._writing = Writing()
        self._hang = HangWatch(self._rank, self._passes, self._step, lambda: self.recording,
                               later_step=lambda: self.later.step)
        self._watch = TerminationWatch(self._on_termination, self._hang.on_signal)
        self._written = known.written if known and known.signals_seen else self._watch.resume
        self._walk = StepWalk(
            self._rank, self._passes, self._step, self._finder, writing=self._writing, hang=self._hang,
            guard=self._guarded, is_recording=lambda: self.recording, complete=self._complete,
            written=self._written, thread=self._thread, is_later=known is not None)
        self._optimizers = OptimizerHooks(self._passes, guard=self._guarded, stepped=self._walk.optimizer_stepped,
                                          is_recording=lambda: self.recording and not self._thread.is_other,
                                          later=self._windows, is_told=known is not None)
        if known:
            self._hang.stays = False  # the first recording keeps watching
            self._passes.phases.num_evaluations = known.num_evaluations

    @property
    def plan(self) -> StepPlan:
        """The number of steps of each pass."""
        return self._rank.plan

    def start(self) -> None:
        """Begins with the first step of the plan."""
        self.recording = True
        self._guarded(self._start)()
        self._written()

    def step(self) -> None:
        """Ends a step explicitly; from then on, optimizer steps do not."""
        if self.recording:
            self._guarded(self._walk.explicit_step)()
        else:
            self._windows.explicit_step()

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Marks everything inside as evaluation, even with gradients."""
        self._evaluates(1)
        try:
            yield
        finally:
            self._evaluates(-1)

    def _evaluates(self, more: int) -> None:
        self._passes.phases.num_evaluations += more
        self._windows.evaluates(more)

    def close(self, error: BaseException | None = None) -> None:
        """Writes what has been recorded, and stops recording.

        Args:
            error: The exception that ended the script; None if it ended normally.
        """
        self._windows.close(error)
        failure = failure_of(error)
        self.later.stop(failure.what if failure is not None else "")
        if error is not None:
            self._hang.on_error(error)
        self._rank.failure = self._rank.failure or failure
        if self.recording:
            self._guarded(self._close)(error)
        else:
            self._rank.add_end()
            self._optimizers.stop()
        self._compilations.stop()
        self._stop_watching()

    def _start(self) -> None:
        expect_linux("record")
        import_torch("record")
        forget = weakref.WeakMethod(self._forget)  # what is registered here stays for the life of the process
        os.register_at_fork(after_in_child=lambda: (method := forget()) and method())
        self._watch.start()
        with self._writing.held():
            self._optimizers.start()
            self._compilations.start()
            self._walk.start()
            self._rank.open()
            self._hang.start()
            self._walk.begin_step()

    # --- later in the job ------------------------------------------------------------------------------------------

    def _window(self, number: int, first_step: int, plan: StepPlan, folder: Path) -> LaterRecording | None:
        """Returns a recording that begins in a step of the job; None if a profiler session has not ended."""
        if self._make_later is None or not self._passes.sessions.have_ended():
            return None
        return self._make_later(folder, plan, KnownJob(
            rank=self._rank.later(number, first_step=first_step, plan=plan), finder=self._finder,
            modules=self._passes.modules, calls=self._calls, judge=self._judge, thread=self._thread,
            num_evaluations=self._passes.phases.num_evaluations, signals_seen=self._hang.stays,
            written=self._watch.resume))

    # --- the end -----------------------------------------------------------------------------------------------

    def _close(self, error: BaseException | None) -> None:
        self._walk.script_ended()
        if not self.recording:
            return
        if not self._step.number and self._rank.is_superfluous(tentative=self._tentative):
            if self._finder.num_turns:
                self._say_no_step(self._finder.why_none(self._step.all_forward_calls), "nothing was written")
            self._remove()
            self._rank.stop()
            return
        failure = in_a_line(error) if error is not None else None
        reason = failure or "the script ended"
        status, why = self._outcome(reason, failure)
        if not self._step.number and self._known is None:
            why = f"{reason} and no step was found: {self._no_step_found()}"
        self._rank.labels_last_calls = self._rank.failure is not None and self._passes.current.labels_collectives
        self._rank.clock.sample(last=True)
        self._finish(status, why)

    def _no_step_found(self) -> str:
        """Returns why no step was found; also tells the user, unless the script failed."""
        found = self._finder.why_none(self._step.all_forward_calls)
        if self._rank.failure is None:
            self._say_no_step(found, "no step was recorded")
        return found

    def _say_no_step(self, found: str, what: str) -> None:
        hint = (f"set {VARIABLE if self._tentative else '--step-every'} to the optimizer class or the number of "
                "optimizer steps that make a step" if self._finder.num_turns else
                "call rec.step() at the end of each step, with distprof.record(...) as rec")
        self._rank.say(f"{what}: expected optimizer.step() to end each step, {found}  hint: {hint}")

    def _complete(self) -> None:
        """Ends the recording after all passes, while the script continues."""
        self._finish("complete", goes_on=self.later.are_wanted)
        self.later.start(self._step.number)
        self._passes.sessions.forget_events()
        give_back()

    def _finish(self, status: Status, why: str | None = None, *, goes_on: bool = False) -> None:
        with self._writing.held():
            if not self.recording:
                return
            self._remove(goes_on=goes_on)
            self._write(status, why)
        if self._hang.stays:  # until the script ends
            self._watch.resume()
        else:
            self._stop_watching()  # a SIGTERM that came before waited for the files

    def _write(self, status: Status, why: str | None) -> None:
        self._step.device_times.settle()
        self._rank.flush(self._passes, status=status, why=why)
        self._walk.stop()  # a session may have ended since
        self._hang.complete(self._rank.complete)
        self._rank.stop()

    def _on_termination(self, reason: str, on_main_thread: bool) -> Flush:  # noqa: FBT001 (a callback)
        """Writes the recording; called by a signal handler, or by a thread while the main thread hangs."""
        inside = self._windows.end_by_signal(reason, on_main_thread=on_main_thread)
        if inside is not Flush.DONE:
            return inside
        if on_main_thread and self._writing.now:
            return Flush.LATER  # the signal interrupted a write, which has to end first
        if on_main_thread and self.recording and self._passes.current.in_operator():
            return Flush.SOON
        if not on_main_thread:
            self._hang.on_hanging()
        try:
            with self._writing.at_the_end():
                self._finish_early(reason, on_main_thread)
        except Exception as error:  # noqa: BLE001 (the process is about to end, and its signal must not be held up)
            self._rank.say(f"could not write the recording: {error}")
        return Flush.DONE

    def _finish_early(self, reason: str, on_main_thread: bool) -> None:  # noqa: FBT001 (as `_on_termination`)
        status, why = self._outcome(reason)
        if self.recording and on_main_thread:
            self._finish(status, why)
        elif not self.recording:
            self.later.flush(reason)
        else:
            self.recording = False
            if (lost := self._passes.current.lost_elsewhere) is not None:
                self._rank.note(lost)
            self._rank.flush(self._passes, status=status, why=why, elsewhere=True)
            self._hang.complete(self._rank.complete)

    def _outcome(self, reason: str, failure: str | None = None) -> tuple[Status, str | None]:
        """Returns the status of a recording that ends here, and why steps are missing or how the script failed."""
        if self._step.number and self._walk.has_enough:
            return "complete", failure
        profiled = sum(step < self._step.number for step in self._rank.progress.paused_steps)
        under = f", {profiled} of them under the script's own profiler" if profiled else ""
        all_steps = counted(self.plan.num_required + profiled, "step")
        return "partial", f"{reason} after {self._step.number} of {all_steps}{under}"

    def _stop_watching(self) -> None:
        self._hang.stop()
        self._watch.stop()

    def _remove(self, *, goes_on: bool = False) -> None:
        """Removes every hook, mode and patched function, except those for logging later steps (`goes_on`)."""
        self.recording = False
        try:
            self._walk.stop()  # first, because these hooks may already wrap what a pass wraps
        finally:
            self._optimizers.stop(goes_on=goes_on)

    def _fail(self, error: Exception) -> None:
        self.recording = False
        self._report(error, (self._remove, self._compilations.stop, partial(self._rank.fail, in_words(error)[0]),
                             self._rank.stop, self._stop_watching, self._watch.resume))

    def _report(self, error: Exception, undoing: Sequence[Callable[[], object]]) -> None:
        what, hint = in_words(error)
        self._rank.say(f"recording stopped, training continues: {what}{f'  hint: {hint}' if hint else ''}")
        if os.environ.get("DISTPROF_DEBUG"):
            sys.excepthook(type(error), error, error.__traceback__)
        for undo in undoing:
            try:
                undo()
            except Exception:  # noqa: BLE001 (the failure is already reported; nothing may reach the script)
                continue
        error.__traceback__ = error.__context__ = error.__cause__ = None  # they refer to models and optimizers

    def _forget(self) -> None:
        # a forked child, for example a data loader worker, must not write into our folder
        self.recording = self._hang.stays = False
        self.later.forget()
        self._windows.forget()
        self._rank.forget()
        self._compilations.forget()

    def _guarded(self, function: Callable[..., None]) -> Callable[..., None]:
        """Wraps a function that the script's thread calls: an error ends the recording and nothing else.

        It does nothing while TorchScript traces, which would make it part of the graph.
        """

        def guarded(*args: Any, **kwargs: Any) -> None:
            # first, because a compiler that traces this must not depend on whether we record
            if is_compiling() or not self.recording or is_traced() is not None:
                return
            try:
                with unnoticed():
                    function(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 (the training job always survives us)
                self._fail(error)

        never_compile(guarded)
        return guarded
