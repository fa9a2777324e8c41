"""Walks a rank through its plan: ends a step when the script does, and switches to the pass of the next one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import torch
from torch.optim import Optimizer

from distprof.contract.passes import WAIT
from distprof.model.scopes import Frame, Guard, in_backward
from distprof.recording.hang.watch import HangWatch
from distprof.recording.pass_switch import PassSwitch
from distprof.recording.rank_recording import RankRecording
from distprof.recording.steps.current_step import CurrentStep
from distprof.recording.steps.finder import StepFinder
from distprof.recording.steps.pattern import Waited
from distprof.recording.steps.step_thread import StepThread
from distprof.recording.termination import Writing
from distprof.recording.tracing.foreign_profiler import ForeignProfiler

sequence_number = torch._C._autograd._get_sequence_nr
"""Returns the sequence number of the next autograd node that is created on this thread."""


class StepWalk:
    """The steps of one recording, from the first to the last of its plan."""

    def __init__(self, rank: RankRecording, passes: PassSwitch, step: CurrentStep, finder: StepFinder, *,
                 writing: Writing, hang: HangWatch, guard: Guard, is_recording: Callable[[], bool],
                 complete: Callable[[], None], written: Callable[[], None], thread: StepThread,
                 is_later: bool = False) -> None:
        """Stores its parts; `start` begins.

        Args:
            rank: Receives the rows of steps, and knows the progress in the plan.
            passes: The passes to switch.
            step: The running step.
            finder: Finds out what ends a step.
            writing: Held while files are written.
            hang: Told of every step.
            guard: Wraps functions that the script calls.
            is_recording: Returns False once everything was written.
            complete: Called at the end of the last step.
            written: Called whenever writing has ended.
            thread: The thread that runs the steps.
            is_later: Whether an earlier recording of the job counts its steps. Then no tables are written when a pass
                ends, which takes a second the first time.
        """
        self._rank = rank
        self._passes = passes
        self._step = step
        self._finder = finder
        self._writing = writing
        self._hang = hang
        self._is_recording = is_recording
        self._complete = complete
        self._written = written
        self._thread = thread
        self._is_later = is_later
        self._profiler = ForeignProfiler(self._make_way, guard(self._resume))
        self._paused = guard(self._pause)
        self._listening = False
        self._began_at: int | None = None

    def start(self) -> None:
        """Prepares the first step."""
        self._profiler.start()

    def stop(self) -> None:
        """Removes everything, except what makes way for a session of the script while our session has not ended."""
        self._passes.scopes.remove(self._step)
        self._passes.switch(None)
        if self._passes.sessions.have_ended():
            self._profiler.stop()

    @property
    def has_enough(self) -> bool:
        """True if all passes that are still to come are optional."""
        return self._rank.progress.has_enough(self._step.number)

    @property
    def evaluates(self) -> bool:
        """True inside `Recorder.evaluation`."""
        return self._passes.phases.num_evaluations > 0

    # --- what happens in the script --------------------------------------------------------------------------------

    def before_root(self, frame: Frame) -> None:
        """Called before a call of a root module."""
        self._thread.meets(frame.site.model)
        if self._thread.is_open:
            return
        if self._finder.was_mistaken:  # an optimizer stepped during backward
            self._start_over()
        was_unclear = self._finder.rule is None
        ended = self._finder.before_root(frame.site, evaluates=self.evaluates)
        if ended and self._trains_already():
            self._start_over()
            was_unclear, ended = True, self._finder.before_root(frame.site)
        self._after_event(ended=ended, was_unclear=was_unclear)
        if not ended and not self._step.number and not self._step.all_forward_calls and not self._finder.num_turns:
            self._rank.clock.sample() if self._rank.plan.pass_of(0) != WAIT else self._rank.clock.meet()
            # what the script did before its first forward call is not part of the first step
            self._step.restart()
            self._finder.begins()
            self._passes.current.restart_step()

    def optimizer_stepped(self, optimizer: Optimizer, skipped: bool) -> None:  # noqa: FBT001 (a callback)
        """Called after an optimizer stepped, or a gradient scaler skipped its step."""
        inside = in_backward()
        if not (inside or self._counts(optimizer)):
            return
        was_unclear = self._finder.rule is None
        ended = self._finder.after_optimizer(optimizer, in_backward=inside, skipped=skipped)
        if self._finder.was_mistaken and not inside:
            self._start_over()
            was_unclear = True
            # the step that ends here was not seen, so it cannot be the first one of a pass
            ended = self._finder.after_optimizer(optimizer, skipped=skipped) and self._rank.plan.pass_of(0) == WAIT
        if not inside:  # in backward nothing can be switched: this may be a thread of autograd
            self._after_event(ended=ended, was_unclear=was_unclear)

    def _counts(self, optimizer: Optimizer) -> bool:
        """Returns whether the optimizer step belongs to the thread whose steps are recorded."""
        num_others = len(self._thread.left_out)
        counts = self._thread.counts(optimizer, measured=not self._finder.waiting)
        if len(self._thread.left_out) > num_others:
            optimizers, models = self._thread.others()
            if self._finder.waiting:
                self._finder.start_over(optimizers)
            self._finder.leave_out(optimizers)
            for model in models:
                self._passes.modules.drop(model)
        return counts

    def _trains_already(self) -> bool:
        """Returns whether the job trains, though it was taken for inference and no optimizer has stepped yet, as before
        the first step of an accumulation; looked at only before the last step."""
        return (self._finder.rule == "forward" and torch.is_grad_enabled() and not self._is_later
                and self._rank.progress.pass_of(self._step.number + 1) is None and self._finder.optimizer_is_alive())

    def _start_over(self) -> None:
        """Drops all steps: the calls taken for inference only came before the training loop."""
        if self._rank.progress.paused_steps or self._is_later:  # others know them by number
            return
        with self._writing.held():
            self._passes.start_over()
            self._rank.start_over()
            self._step.start_over()
            self._finder.start_over()
            self._passes.modules.start_over()
            self.begin_step()

    def explicit_step(self) -> None:
        """Called when the script explicitly ends a step."""
        is_unclear = self._finder.must_wait
        if self._finder.explicit():
            if is_unclear and self._rank.progress.pass_of(self._step.number) != WAIT:
                self.begin_step()  # nothing was switched on in the step that ends here
            else:
                self._end_step()

    def script_ended(self) -> None:
        """Ends the step that otherwise only the next one would have ended."""
        if self._finder.at_end() or (self._finder.rule == "forward" and self._step.forward_calls):
            self._end_step()

    def _after_event(self, *, ended: bool, was_unclear: bool) -> None:
        """Ends a step; while it is unclear what ends one, keeps looking."""
        if self._finder.must_wait:
            self._keep_looking()
        elif ended and was_unclear and len(waited := self._finder.waited()) > 1:
            self._end_waiting(waited)
        elif ended:
            self._end_step()

    def _keep_looking(self) -> None:
        """Goes on without ending a step: several optimizers are alive, and their pattern is not known yet."""
        self._step.num_turns = self._finder.num_turns
        self._hang.step_ended(self._step.duration_ns() // (self._finder.num_turns or 1))
        if self._passes.running not in (None, WAIT):
            self._passes.start_over()
            self.begin_step()
        self._rank.clock.meet()

    def _end_waiting(self, waited: Sequence[Waited]) -> None:
        """Records finished iterations as steps of the wait pass, after it became clear what ends a step."""
        number = self._rank.plan.steps[WAIT]
        with self._writing.held():
            for step in waited[-number:] if number else ():
                self._hang.step_ended(step.duration_ns)
                self._rank.add_step(self._step.end_waited(step))
            self._rank.progress.paused = False  # those steps are over, and nothing was on in them anyway
            if self._rank.progress.pass_of(self._step.number) != WAIT:
                self._rank.clock.sample()
            if self._is_recording():  # the thread may have written everything already
                self.begin_step()
        self._written()

    # --- steps -----------------------------------------------------------------------------------------------------

    def begin_step(self) -> None:
        """Begins a step and switches to its pass."""
        self._began_at = None
        if self._profiler.is_active():
            self._pause()
            self._began_at = sequence_number()
        wanted = WAIT if self._rank.progress.paused else self._rank.progress.pass_of(self._step.number)
        if self._finder.must_wait:  # while that is unclear, nothing stays switched on
            wanted = None
        if not self._rank.progress.paused:
            self._finder.waiting = wanted in (None, WAIT)
        if wanted != self._passes.running:
            self._passes.switch(wanted)
        # while waiting, only optimizers are watched, once it is known that they end steps
        listening = wanted not in (None, WAIT) or self._finder.needs_modules
        if listening != self._listening:  # hooks that are on stay on: a module may be about to be called
            self._listening = listening
            if listening:
                self._passes.scopes.add(self._step, roots_only=True)
            else:
                self._passes.scopes.remove(self._step)
        self._step.begin(listening=listening)
        self._passes.current.restart_step()  # the time since the last step, spent writing, belongs to neither

    def _end_step(self) -> None:
        with self._writing.held():
            if self._is_recording():  # the thread may have written everything already
                self._write_step()
            if self._is_recording():
                self.begin_step()  # a pass that is half switched on cannot be removed
        self._written()

    def _write_step(self) -> None:
        duration_ns = self._step.duration_ns()
        running = self._passes.running
        self._hang.step_ended(duration_ns)
        self._passes.next_step()
        self._rank.add_step(self._step.end(running or WAIT, duration_ns))
        self._rank.progress.step_ended(self._step.number - 1)
        following = self._rank.progress.pass_of(self._step.number)
        # before anything is written, while the other ranks are here and the interpreter is free to answer them
        if following is not None and self._profiler.is_active():
            return  # otherwise this would be in the script's profile
        if following != running:
            self._rank.clock.sample(last=following is None)
        elif following == WAIT:
            self._rank.clock.meet()
        if following is None:
            self._complete()
        elif following != running:
            self._passes.switch(None)
            if self._is_later:
                return
            self._rank.flush(self._passes, status="complete" if self.has_enough else "recording")
        else:
            self._rank.look_at_models(self._passes)

    # --- the script's own profiler ---------------------------------------------------------------------------------

    def _make_way(self) -> None:
        """Makes way for the script's own profiler when it begins."""
        with suppress(RuntimeError):  # torch itself reports what keeps a session from beginning
            self._passes.sessions.make_way()  # also after the recording
        self._paused()

    def _pause(self) -> None:
        """Switches everything off for this step, in which the script's own profiler begins or runs."""
        with self._writing.held():
            if not self._rank.progress.paused_steps:
                self._rank.say("the script is running its own torch.profiler, so distprof does not record those steps")
            if self._passes.running not in (None, WAIT):
                self._passes.switch(WAIT)
                self._passes.sessions.make_way()
            self._rank.progress.pause(self._step.number)

    def _resume(self) -> None:
        """Restarts the step if the script's own profiler ended before anything happened in it."""
        if self._rank.progress.paused and self._began_at == sequence_number() and not self._profiler.is_active():
            with self._writing.held():
                self._rank.progress.resume(self._step.number)
                self.begin_step()
