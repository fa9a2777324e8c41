"""Where the time of a step goes, as the calls of root modules and optimizers tell: one hook, in nothing but roots.

A hook of all modules would cost a model of 500 modules half a millisecond a step. So ours is there only until a root is
called; then it goes, a hook of that root alone waits for the end of the call, and puts it back.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import update_wrapper
from threading import get_ident
from typing import Any

import torch
from torch import nn
from torch.compiler import is_compiling
from torch.nn.modules import module as nn_module
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from distprof.contract.watch import UNKNOWN
from distprof.model.compiled import ABOUT_HOOKS, CompiledCalls, CompileWatch, is_generated, never_compile
from distprof.model.modules import Site
from distprof.model.quiet import QuietAbout, is_traced, unnoticed
from distprof.model.scopes import in_backward
from distprof.recording.steps.phases import Phases

now_ns = time.perf_counter_ns


StepPhases = tuple[int, int, int, int, int]
"""Span, data, forward, backward, optimizer of a step, ns; those in the middle are `UNKNOWN` where no root was seen."""


class _Leave:
    """The hook in the root that runs. A copy of that model made meanwhile has one that does nothing."""

    def __init__(self, left: Callable[[nn.Module], None] | None = None) -> None:
        self._left = left

    def __call__(self, module: nn.Module, *_: object) -> None:
        if self._left is not None and not is_compiling():
            self._left(module)

    def __deepcopy__(self, _memo: object) -> _Leave:
        return _Leave()

    def __reduce__(self) -> Any:
        return getattr, (nullcontext(), "__exit__")  # takes anything and does nothing, where we are not installed too


class RootPhases:
    """The phases of the running step, on the thread that called `start`."""

    def __init__(self, nesting: Phases, root_begins: Callable[[nn.Module], None],
                 failed: Callable[[Exception], None]) -> None:
        """Begins switched off.

        Args:
            nesting: Which optimizers run in which.
            root_begins: Called with a root whose call begins, before that is noted; it may end a step.
            failed: Called with what went wrong here, which must not reach the script.
        """
        self._root_begins, self._failed = root_begins, failed
        self._is_on = False
        self._thread = 0
        with unnoticed():
            self._number = RemovableHandle(OrderedDict[int, Any]()).id
        self._enter, self._leave = self._on_enter, _Leave(self._on_leave)  # one object each: torch keeps them
        self._inside: weakref.ref[nn.Module] | None = None
        self._entered_ns = self._began_ns = self._first_ns = self._forward_ns = 0
        self._nesting = nesting
        self._optimizer_at_ns = self._optimizer_ns = 0
        self._in_backward = False
        self.is_evaluated = False
        """True where a root was called without gradient in the step."""
        self._quiet = QuietAbout(ABOUT_HOOKS)
        self._compile_watch = CompileWatch(self._disarm, self._arm)
        self._compiled = CompiledCalls(self._enter_compiled, self._leave_compiled)
        never_compile(type(self)._on_enter, type(self)._on_leave, type(self._leave).__call__)

    def start(self, roots: Iterable[Site]) -> None:
        """Begins; of these roots calls of compiled code are seen too."""
        self._is_on, self._thread = True, get_ident()
        self._quiet.start()
        self._compile_watch.start()
        self._compiled.add(roots)
        self._arm()
        self.begin()

    def stop(self) -> None:
        """Takes all hooks away."""
        self._is_on = False
        self._leave_root()
        self._disarm()
        self._compile_watch.stop()
        self._compiled.remove()
        self._quiet.stop()

    def begin(self) -> None:
        """A step begins."""
        self._first_ns = self._forward_ns = self._optimizer_ns = 0
        self.is_evaluated = False
        self._began_ns = now_ns()

    def take(self, *, is_inference: bool) -> StepPhases:
        """The parts of the step that ends now.

        Args:
            is_inference: There is no backward: between forward calls the script looks for data.
        """
        now = now_ns()
        if self._inside is not None:  # an error that torch does not catch left it, or it holds the loop of the script
            self._leave_root(now)
            self._arm()
        span, forward, optimizer = now - self._began_ns, self._forward_ns, self._optimizer_ns
        if not self._first_ns:
            return span, UNKNOWN, UNKNOWN, UNKNOWN, optimizer
        data = span - forward - optimizer if is_inference else self._first_ns - self._began_ns
        return span, data, forward, max(0, span - data - forward - optimizer), optimizer

    # --- root modules ----------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        if self._is_on and self._inside is None:
            nn_module._global_forward_pre_hooks[self._number] = self._enter

    def _disarm(self) -> None:
        nn_module._global_forward_pre_hooks.pop(self._number, None)

    def _on_enter(self, module: nn.Module, _args: tuple[Any, ...]) -> None:
        if is_compiling() or get_ident() != self._thread or is_traced() is not None or is_generated(module):
            return
        hooks = vars(module).get("_forward_hooks")
        if hooks is None or not self._is_on or self._inside is not None:
            return
        try:
            self._root_called(module, hooks)
        except Exception as error:  # noqa: BLE001 (the training job always survives us)
            self._failed(error)

    def _root_called(self, module: nn.Module, hooks: dict[int, Any]) -> None:
        self._in_backward = in_backward()
        if not self._in_backward:
            self._compile_watch.start()
            self._root_begins(module)
        if not self._is_on:  # something went wrong, or a window begins
            return
        self._disarm()
        hooks[self._number] = self._leave
        module._forward_hooks_always_called[self._number] = True
        self._begin_root(module)

    def _begin_root(self, module: nn.Module) -> None:
        self._inside = weakref.ref(module)
        self._entered_ns = now_ns()
        if not self._in_backward:  # else it is checkpointed, and is part of backward
            self._first_ns = self._first_ns or self._entered_ns
            self.is_evaluated |= not torch.is_grad_enabled()

    def _on_leave(self, module: nn.Module) -> None:
        if self._inside is not None and self._inside() is module:
            self._leave_root()
            self._arm()

    def _leave_root(self, now: int = 0) -> None:
        inside, self._inside = self._inside, None
        if inside is None:
            return
        if not self._in_backward:
            self._forward_ns += (now or now_ns()) - max(self._entered_ns, self._began_ns)
        module = inside()
        hooks = None if module is None else vars(module).get("_forward_hooks")
        # torch goes through the hooks themselves after an error: then only the last one can go
        if module is not None and hooks and (sys.exc_info()[0] is None or next(reversed(hooks)) == self._number):
            hooks.pop(self._number, None)
            module._forward_hooks_always_called.pop(self._number, None)

    def _enter_compiled(self, module: nn.Module, _args: tuple[Any, ...]) -> None:
        if self._is_on and get_ident() == self._thread and self._inside is None and not in_backward():
            self._in_backward = False
            self._root_begins(module)
            if self._is_on:
                self._disarm()
                self._begin_root(module)

    def _leave_compiled(self, module: nn.Module, *_: object) -> None:
        self._on_leave(module)

    # --- optimizers ------------------------------------------------------------------------------------------------

    def before_optimizer(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An optimizer begins; gives other arguments where a closure has to be watched: it is no part of it."""
        if get_ident() != self._thread or not self._nesting.optimizer_begins(optimizer):
            return None
        self._optimizer_at_ns = now_ns()
        if callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": self._around(kwargs["closure"])}
        if len(args) > 1 and callable(args[1]):  # behind the optimizer itself
            return (args[0], self._around(args[1]), *args[2:]), kwargs
        return None

    def after_optimizer(self, optimizer: Optimizer) -> bool:
        """It ended; true on the thread of the steps, unless another one called it."""
        if get_ident() != self._thread or not self._nesting.optimizer_ends(optimizer):
            return False
        if self._optimizer_at_ns:
            self._optimizer_ns += now_ns() - max(self._optimizer_at_ns, self._began_ns)
            self._optimizer_at_ns = 0
        return True

    def _around(self, closure: Callable[..., Any]) -> Callable[..., Any]:
        def around(*args: Any, **kwargs: Any) -> Any:
            began = now_ns()
            self._nesting.closure_begins()
            try:
                return closure(*args, **kwargs)
            finally:
                self._nesting.closure_ends()
                self._optimizer_at_ns += now_ns() - began

        return update_wrapper(around, closure)
