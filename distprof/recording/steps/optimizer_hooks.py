"""Hooks in every optimizer of the process: what they step is the optimizer phase, and may end a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from distprof.contract.passes import WAIT
from distprof.model.compiled import never_compile
from distprof.model.scopes import Guard
from distprof.process.accelerators import is_capturing
from distprof.recording.pass_switch import PassSwitch
from distprof.recording.steps.replayed import ReplayedSteps
from distprof.recording.steps.skipped import SkippedSteps


class OptimizerHooks:
    """Watches optimizers, between `start` and `stop`."""

    def __init__(self, passes: PassSwitch, *, guard: Guard, is_recording: Callable[[], bool],
                 stepped: Callable[[Optimizer, bool], None], later: Callable[[Optimizer, bool], None],
                 is_told: bool = False) -> None:
        """Prepares.

        Args:
            passes: Told when an optimizer begins and ends.
            guard: What wraps calls from the script.
            is_recording: False once nothing is to be watched.
            stepped: Called behind each step with its optimizer, and True where a gradient scaler left the step out.
            later: Called behind each step once nothing else is to be watched, and True where a graph was replayed.
            is_told: Other hooks call `behind`: torch may be at its own list of them when this begins.
        """
        self._passes = passes
        self._guard = guard
        self._is_told = is_told
        self._is_recording = is_recording
        self._stepped, self._later = stepped, later
        self._guarded_after = guard(self._after)
        self._num_steps = 0
        self._begins = guard(passes.optimizer_begins)
        self._guarded_replayed = guard(self._was_replayed)
        self._replayed = ReplayedSteps(self._behind_replay)
        self._skipped = SkippedSteps(lambda: self._num_steps, guard(lambda optimizer: stepped(optimizer, True)))
        self._handles: list[Any] = []
        never_compile(type(self)._before)
        never_compile(type(self)._behind)

    def start(self) -> None:
        """Begins to watch."""
        self._handles = [register_optimizer_step_pre_hook(self._before)]
        if not self._is_told:
            self._handles.append(register_optimizer_step_post_hook(self._behind))
            self._replayed.start()
        self._skipped.start()

    def stop(self, *, goes_on: bool = False) -> None:
        """Takes everything away, but for what `later` needs where steps go on being noted.

        That is not put there now: torch may be at these hooks.
        """
        for handle in self._handles[:1] if goes_on else self._handles:
            handle.remove()
        self._skipped.stop()
        if not (goes_on and self._replayed.holds_some):
            self._replayed.stop()

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        """Marks the begin; in the arguments that it returns, if any, the closure is watched."""
        if torch.compiler.is_compiling() or not self._is_recording() or is_capturing():
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

    def _behind(self, optimizer: Optimizer, *_: Any) -> None:
        if is_capturing():
            self._replayed.captured(optimizer)
            return
        if self._is_recording():
            self._guarded_after(optimizer)
        else:
            self._later(optimizer, False)

    def _behind_replay(self, optimizer: Optimizer) -> None:
        if self._is_recording():
            self._guarded_replayed(optimizer)
        else:
            self._later(optimizer, True)

    def behind(self, optimizer: Optimizer, replayed: bool) -> None:  # noqa: FBT001 (as `later`)
        """What other hooks tell, of which the ones here do not know."""
        (self._guarded_replayed if replayed else self._guarded_after)(optimizer)

    def _was_replayed(self, optimizer: Optimizer) -> None:
        self._num_steps += 1
        self._stepped(optimizer, False)

    def _after(self, optimizer: Optimizer, *_: Any) -> None:
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
