"""Hooks in every optimizer of the process: an optimizer's step is a phase, and may end a step of the job."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from distprof.contract.passes import WAIT
from distprof.model.compiled import never_compile
from distprof.model.scopes import Guard
from distprof.process.accelerators import capture_question, is_capturing
from distprof.recording.pass_switch import PassSwitch
from distprof.recording.steps.unhooked_steps import ReplayedSteps, SkippedSteps

ASKED_EVERY = 16
"""Number of optimizer steps after which the device is looked up again, until a graph was captured."""


class Later(Protocol):
    """Receives optimizer steps once nothing else is watched."""

    def before_optimizer(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Called before each step; returns replacements for its arguments, or None."""

    def after_optimizer(self, optimizer: Optimizer, *, called: bool = True, skipped: bool = False) -> None:
        """Called after each step.

        Args:
            optimizer: The optimizer.
            called: False if a CUDA graph with the step was replayed, or a gradient scaler skipped the step.
            skipped: True if a gradient scaler skipped the step.
        """


class OptimizerHooks:
    """Watches optimizers between `start` and `stop`."""

    def __init__(self, passes: PassSwitch, *, guard: Guard, is_recording: Callable[[], bool],
                 stepped: Callable[[Optimizer, bool], None], later: Later, is_told: bool = False) -> None:
        """Prepares callbacks; `start` installs them.

        Args:
            passes: Told when an optimizer begins and ends.
            guard: Wraps functions that the script calls.
            is_recording: Returns False once nothing is to be watched.
            stepped: Called after each step with its optimizer, and True if a gradient scaler skipped the step.
            later: Receives steps once nothing else is watched.
            is_told: Installs nothing: `before` and `behind` are called from the hooks of another instance.
        """
        self._passes = passes
        self._guard = guard
        self._is_told = is_told
        self._is_recording = is_recording
        self._stepped, self._later = stepped, later
        self._guarded_after = guard(self._after)
        self._num_steps = 0
        self._goes_on = False
        """True once only `later` receives steps."""
        self._asks: Callable[[], bool] | None = None
        """Returns whether a graph is being captured; None if there is no device."""
        self._begins = guard(passes.optimizer_begins)
        self._guarded_replayed = guard(self._was_replayed)
        self._replayed = ReplayedSteps(self._behind_replay)
        self._guarded_skipped = guard(lambda optimizer: stepped(optimizer, True))
        self._skipped = SkippedSteps(lambda: self._num_steps, self._was_skipped)
        self._handles: list[Any] = []
        never_compile(type(self)._before, type(self)._behind)

    def start(self) -> None:
        """Begins to watch."""
        if self._is_told:
            return
        self._handles = [
            register_optimizer_step_pre_hook(self._before),
            register_optimizer_step_post_hook(self._behind),
        ]
        self._skipped.start()
        self._replayed.start()

    def stop(self, *, goes_on: bool = False) -> None:
        """Removes everything, except what `later` needs if it continues to receive steps (`goes_on`).

        Those hooks were installed at the start and stay, since torch may be iterating over them.
        """
        self._goes_on = goes_on
        if not goes_on:
            for handle in self._handles:
                handle.remove()
            self._skipped.stop()
        if not (goes_on and self._replayed.holds_some):
            self._replayed.stop()

    def before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Called before an optimizer steps; returns replacements for its arguments, or None."""
        return self._before(optimizer, args, kwargs)

    def behind(self, optimizer: Optimizer, *, called: bool, skipped: bool) -> None:
        """Called after it; the arguments are those of `Later.after_optimizer`."""
        if called:
            self._guarded_after(optimizer)
        elif skipped:
            self._guarded_skipped(optimizer)
        else:
            self._guarded_replayed(optimizer)

    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Marks the start of a step; returns arguments with a wrapped closure, if there is one."""
        if self._goes_on or not self._is_recording():
            return self._later.before_optimizer(optimizer, args, kwargs)
        if torch.compiler.is_compiling() or is_capturing():
            return None
        _become_last(self._handles[1:])
        self._begins(optimizer)
        if self._passes.running in (None, WAIT):
            return None
        if callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": self._passes.around_closure(kwargs["closure"])}
        if len(args) > 1 and callable(args[1]):  # after the optimizer itself
            return (args[0], self._passes.around_closure(args[1]), *args[2:]), kwargs
        return None

    def _behind(self, optimizer: Optimizer, *_: object) -> None:
        if self._goes_on and not self._replayed.has_begun:
            # finding out which device the job uses takes longer than the rest
            if not self._num_steps % ASKED_EVERY:
                self._asks = capture_question()
            captures = self._asks is not None and self._asks()
        else:
            captures = is_capturing()
        if captures:
            self._replayed.captured(optimizer)
        elif self._goes_on or not self._is_recording():
            self._num_steps += 1
            self._later.after_optimizer(optimizer)
        else:
            self._guarded_after(optimizer)

    def _behind_replay(self, optimizer: Optimizer) -> None:
        if self._is_recording():
            self._guarded_replayed(optimizer)
        else:
            self._num_steps += 1
            self._later.after_optimizer(optimizer, called=False)

    def _was_skipped(self, optimizer: Optimizer) -> None:
        if self._is_recording():
            self._guarded_skipped(optimizer)
        else:
            self._later.after_optimizer(optimizer, called=False, skipped=True)

    def _was_replayed(self, optimizer: Optimizer) -> None:
        self._num_steps += 1
        self._stepped(optimizer, False)

    def _after(self, optimizer: Optimizer, *_: object) -> None:
        _become_last(self._handles[:1])
        self._num_steps += 1
        if self._passes.optimizer_ends(optimizer):
            self._stepped(optimizer, False)


def _become_last(handles: Iterable[Any]) -> None:
    """Moves hooks behind those of the script, while torch is not iterating over them.

    torch calls hooks in a loop that fails if one removes itself and others follow it, as ours would at the end.
    """
    for handle in handles:
        hooks = handle.hooks_dict_ref()
        if hooks and handle.id in hooks and next(reversed(hooks)) != handle.id:
            hooks.move_to_end(handle.id)
