"""Hooks in every optimizer of the process: what they step is the optimizer phase, and may end a step."""

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
"""Steps after which it is asked again whether there is a device, before a graph was captured."""


class Later(Protocol):
    """What hears of optimizer steps once nothing else is watched."""

    def before_optimizer(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Called in front of each step; gives other arguments, or None."""

    def after_optimizer(self, optimizer: Optimizer, *, called: bool = True, skipped: bool = False) -> None:
        """Called behind each step.

        Args:
            optimizer: Which.
            called: False where a graph was replayed that holds the step, or a gradient scaler left it out.
            skipped: That one did.
        """


class OptimizerHooks:
    """Watches optimizers, between `start` and `stop`."""

    def __init__(self, passes: PassSwitch, *, guard: Guard, is_recording: Callable[[], bool],
                 stepped: Callable[[Optimizer, bool], None], later: Later, is_told: bool = False) -> None:
        """Prepares.

        Args:
            passes: Told when an optimizer begins and ends.
            guard: What wraps calls from the script.
            is_recording: False once nothing is to be watched.
            stepped: Called behind each step with its optimizer, and True where a gradient scaler left the step out.
            later: Hears of steps once nothing else is watched.
            is_told: Nothing is put anywhere: what happens is told by `before` and `behind`, from hooks of another one.
        """
        self._passes = passes
        self._guard = guard
        self._is_told = is_told
        self._is_recording = is_recording
        self._stepped, self._later = stepped, later
        self._guarded_after = guard(self._after)
        self._num_steps = 0
        self._goes_on = False
        """True where nothing but `later` hears of steps any more."""
        self._asks: Callable[[], bool] | None = None
        """What tells whether a graph is captured."""
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
        """Takes everything away, but for what `later` needs where steps go on being noted.

        That was put there at the start: torch may be at these hooks now.
        """
        self._goes_on = goes_on
        if not goes_on:
            for handle in self._handles:
                handle.remove()
            self._skipped.stop()
        if not (goes_on and self._replayed.holds_some):
            self._replayed.stop()

    def before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An optimizer is about to step; gives other arguments, or None."""
        return self._before(optimizer, args, kwargs)

    def behind(self, optimizer: Optimizer, *, called: bool, skipped: bool) -> None:
        """It stepped; arguments as of `Later.after_optimizer`."""
        if called:
            self._guarded_after(optimizer)
        elif skipped:
            self._guarded_skipped(optimizer)
        else:
            self._guarded_replayed(optimizer)

    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Marks the begin; in the arguments that it returns, if any, the closure is watched."""
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
        if len(args) > 1 and callable(args[1]):  # behind the optimizer itself
            return (args[0], self._passes.around_closure(args[1]), *args[2:]), kwargs
        return None

    def _behind(self, optimizer: Optimizer, *_: object) -> None:
        if self._goes_on and not self._replayed.has_begun:
            # to find out which device the job uses takes longer than the rest
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
    """Moves hooks behind those of the script, while torch is not at them.

    torch calls them in a loop that fails where one takes itself away and others follow, as ours do at the end.
    """
    for handle in handles:
        hooks = handle.hooks_dict_ref()
        if hooks and handle.id in hooks and next(reversed(hooks)) != handle.id:
            hooks.move_to_end(handle.id)
