"""Divides the time of a step by calls of root modules and optimizers, with a single hook, in root modules only.

A hook of all modules would cost a model of 500 modules half a millisecond per step. So our global hook exists only
until a root is called; then a hook of that root alone replaces it until the call ends, which restores the global one.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import update_wrapper
from sys import exc_info
from threading import get_ident
from typing import Any
from weakref import ref

from torch import Event, is_grad_enabled, nn
from torch.compiler import is_compiling
from torch.fx import GraphModule
from torch.nn.modules import module as nn_module
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from distprof.contract.watch import UNKNOWN
from distprof.model.compiled import ABOUT_HOOKS, CompiledCalls, CompileWatch, is_generated, never_compile
from distprof.model.modules import Site
from distprof.model.quiet import QuietAbout, is_traced, unnoticed
from distprof.model.scopes import NO_GRAPH_TASK, graph_task, in_backward
from distprof.own import time
from distprof.recording.steps.finder import StepFinder
from distprof.recording.steps.phases import Phases, new_running
from distprof.recording.watch.loading_time import LoadingTime
from distprof.recording.watch.phase_marks import BEGIN, END, ENTER, LEAVE, OPTIMIZER, OPTIMIZER_END, PhaseMarks

now_ns = time.perf_counter_ns
global_hooks = nn_module._global_forward_pre_hooks
BY_FORWARD = ("forward", "backward", None)
"""Rules of a finder for which a call of a root may end a step; None while it looks for one."""


StepPhases = tuple[int, int, int, int, int]
"""Span, data, forward, backward, optimizer of a step in ns; data, forward and backward are `UNKNOWN` without a root."""


class _Leave:
    """The hook in the running root. A copy of that model made meanwhile gets one that does nothing."""

    def __init__(self, left: Callable[[nn.Module], None] | None = None) -> None:
        self._left = left

    def __call__(self, module: nn.Module, *_: object) -> None:
        if self._left is not None and not is_compiling():
            self._left(module)

    def __deepcopy__(self, _memo: object) -> _Leave:
        return _Leave()

    def __reduce__(self) -> Any:
        return getattr, (nullcontext(), "__exit__")  # takes anything, does nothing; works without distprof


class RootPhases:
    """The phases of the running step, on the thread that called `start`."""

    def __init__(self, nesting: Phases, finder: StepFinder, marks: PhaseMarks, root_begins: Callable[[nn.Module], None],
                 failed: Callable[[Exception], None]) -> None:
        """Begins switched off.

        Args:
            nesting: Knows which optimizers run inside which.
            finder: Its rule tells whether calls of roots end steps.
            marks: Marks the same boundaries on the stream of a device.
            root_begins: Called with a root whose call begins, before the call is noted, if it may end a step.
            failed: Called with an error of this class, which must not reach the script.
        """
        self._finder, self._marks, self._root_begins, self._failed = finder, marks, root_begins, failed
        self._is_on = False
        self._thread = 0
        with unnoticed():
            self._number = RemovableHandle(OrderedDict[int, Any]()).id
        self._enter, self._leave = self._on_enter, _Leave(self._on_leave)  # one object each, since torch keeps them
        self._inside: ref[nn.Module] | None = None
        self._entered_ns = self._began_ns = self._first_ns = self._forward_ns = 0
        self._last = (0, 0, 0, 0, 0, 0)
        """Of the last step: its start, the start of its first forward call (0: none), the times in forward calls, in
        loading data after the first one, and in optimizers, and its end."""
        self._ended = deque[tuple[int, int, int, int, int, int]]()
        """The same of each step that `taken` has not returned yet."""
        self._nesting = nesting
        self._running = nesting.on_this_thread()
        self._optimizer_at_ns = self._optimizer_ns = 0
        self._in_backward = False
        self.last_mark: Event | None = None
        """The mark on the stream at the end of the optimizer for which `after_optimizer` was called last."""
        self.is_evaluated = False
        """True if a root was called without gradients, or for evaluation, in the step."""
        self._loading = LoadingTime(self._is_between, marks)
        self._loaded_ns = 0
        """The loading time when the first forward call of the step began."""
        self._quiet = QuietAbout(ABOUT_HOOKS)
        self._compile_watch = CompileWatch(self._disarm, self._arm)
        self._compiled = CompiledCalls(self._enter_compiled, self._leave_compiled)
        never_compile(type(self)._on_enter, type(self)._on_leave, type(self._leave).__call__,
                      type(self).before_optimizer)

    def start(self, roots: Iterable[Site]) -> None:
        """Begins; for these roots, calls of compiled code are also seen."""
        self._is_on, self._thread, self._running = True, get_ident(), self._nesting.on_this_thread()
        self._ended.clear()
        self._quiet.start()
        self._compile_watch.start()
        self._compiled.add(roots)
        self._loading.start()
        self._arm()
        self.begin()

    def stop(self) -> None:
        """Removes all hooks."""
        self._is_on = False
        if self._inside is not None:
            self._on_leave(self._inside())
        self._disarm()
        self._compile_watch.stop()
        self._compiled.remove()
        self._loading.stop()
        self._quiet.stop()

    def begin(self) -> None:
        """Begins a step."""
        self._first_ns = self._forward_ns = self._optimizer_ns = 0
        self.is_evaluated = False
        if self._marks.is_on:
            self._marks.add(BEGIN)
        self._began_ns = now_ns()

    def end_step(self, mark: Event | None = None) -> int:
        """Ends a step and begins the next one; returns the time by `perf_counter_ns`.

        Args:
            mark: A mark on the stream since which the script has done nothing.
        """
        now = now_ns()
        if self._inside is not None:  # it was left by an error that torch does not catch, or contains the script's loop
            self._on_leave(self._inside(), now)
        loaded = self._loading.total_ns - self._loaded_ns if self._first_ns else 0
        self._last = last = (self._began_ns, self._first_ns, self._forward_ns, loaded, self._optimizer_ns, now)
        self._ended.append(last)
        self._began_ns, self._first_ns, self._forward_ns, self._optimizer_ns = now, 0, 0, 0
        if self._marks.is_on:
            self._marks.add(END, mark)
        return now

    def taken(self, number: int, is_inference: bool) -> list[StepPhases]:  # noqa: FBT001 (a callback)
        """Returns the phases of the next steps, computed here rather than in each step; any thread may call it."""
        return [_phases(*self._ended.popleft(), is_inference=is_inference) for _ in range(number)]

    @property
    def num_ended(self) -> int:
        """Number of steps that `taken` has not returned yet."""
        return len(self._ended)

    @property
    def last_span_ns(self) -> int:
        """Duration of the step that ended last."""
        began, *_, now = self._last
        return now - began

    # --- root modules ----------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        if self._is_on and self._inside is None:
            global_hooks[self._number] = self._enter

    def _disarm(self) -> None:
        global_hooks.pop(self._number, None)

    # the next two functions run in each step, mostly with cold caches, so they call few functions

    def _on_enter(self, module: nn.Module, _args: tuple[Any, ...]) -> None:
        if (is_compiling() or self._inside is not None or get_ident() != self._thread or is_traced() is not None
                or self._loading.is_loading or (isinstance(module, GraphModule) and is_generated(module))):
            return
        hooks = module.__dict__.get("_forward_hooks")
        if hooks is None:
            return
        try:
            self._in_backward = graph_task() != NO_GRAPH_TASK
            if not self._in_backward:
                if not self._compile_watch.heard:
                    self._compile_watch.start()
                if self._finder.rule in BY_FORWARD:
                    self._root_begins(module)
            if not self._is_on:  # something went wrong, or a later recording begins
                return
            global_hooks.pop(self._number, None)
            hooks[self._number] = self._leave
            module._forward_hooks_always_called[self._number] = True
            self._begin_root(module)
        except Exception as error:  # noqa: BLE001 (the training job always survives us)
            self._failed(error)

    def _begin_root(self, module: nn.Module) -> None:
        self._inside = ref(module)
        self._entered_ns = entered = now_ns()
        if not self._in_backward:  # otherwise it is recomputed for checkpointing, which is part of backward
            if not self._first_ns:
                self._first_ns, self._loaded_ns = entered, self._loading.total_ns
            if self._marks.is_on:
                self._marks.add(ENTER)
            if not is_grad_enabled() or self._nesting.num_evaluations:
                self.is_evaluated = True

    def _is_between(self) -> bool:
        """Returns whether the thread of the steps is neither before the first forward call of a step nor in one."""
        return bool(self._is_on and self._first_ns and self._inside is None and get_ident() == self._thread
                    and not self._running and not in_backward())

    def _on_leave(self, module: nn.Module | None, now: int = 0) -> None:
        """Ends the call of this root, if it is the one that runs."""
        if self._inside is None or self._inside() is not module:
            return
        self._inside = None
        if not self._in_backward:
            self._forward_ns += (now or now_ns()) - max(self._entered_ns, self._began_ns)
            if self._marks.is_on:
                self._marks.add(LEAVE)
        hooks = None if module is None else module.__dict__.get("_forward_hooks")
        # after an error torch iterates over the hooks themselves: then only the last one may be removed
        if module is not None and hooks and (exc_info()[0] is None or next(reversed(hooks)) == self._number):
            hooks.pop(self._number, None)
            module._forward_hooks_always_called.pop(self._number, None)
        if self._is_on:
            global_hooks[self._number] = self._enter

    def _enter_compiled(self, module: nn.Module, _args: tuple[Any, ...]) -> None:
        if self._is_on and get_ident() == self._thread and self._inside is None and not (
                self._loading.is_loading or in_backward()):
            self._in_backward = False
            if self._finder.rule in BY_FORWARD:
                self._root_begins(module)
            if self._is_on:
                self._disarm()
                self._begin_root(module)

    def _leave_compiled(self, module: nn.Module, *_: object) -> None:
        self._on_leave(module)

    # --- optimizers ------------------------------------------------------------------------------------------------

    def before_optimizer(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Begins an optimizer's time; if there is a closure, returns arguments that exclude it from this time."""
        if is_compiling() or not self._is_on or get_ident() != self._thread or is_traced() is not None:
            return None
        if not self._running:  # the usual case
            self._running.append(new_running((id(optimizer), graph_task(), None)))
        elif not self._nesting.optimizer_begins(optimizer):
            return None
        self._optimizer_at_ns = now_ns()
        if self._marks.is_on:
            self._marks.add(OPTIMIZER)
        if not kwargs and len(args) == 1:
            return None
        if callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": self._around(kwargs["closure"])}
        if len(args) > 1 and callable(args[1]):  # after the optimizer itself
            return (args[0], self._around(args[1]), *args[2:]), kwargs
        return None

    def after_optimizer(self, optimizer: Optimizer) -> bool:
        """Ends an optimizer's time; true on the thread of the steps, unless another optimizer called it."""
        self.last_mark = None
        if get_ident() != self._thread:
            return False
        running = self._running
        if len(running) == 1 and running[0][0] == id(optimizer):  # the usual case
            running.clear()
        elif not self._nesting.optimizer_ends(optimizer):
            return False
        if self._optimizer_at_ns:
            self._optimizer_ns += now_ns() - max(self._optimizer_at_ns, self._began_ns)
            self._optimizer_at_ns = 0
            if self._marks.is_on:
                self.last_mark = self._marks.add(OPTIMIZER_END)
        return True

    def _around(self, closure: Callable[..., Any]) -> Callable[..., Any]:
        def around(*args: Any, **kwargs: Any) -> Any:
            began = now_ns()
            self._nesting.closure_begins()
            if self._marks.is_on:
                self._marks.add(OPTIMIZER_END)
            try:
                return closure(*args, **kwargs)
            finally:
                if self._marks.is_on:
                    self._marks.add(OPTIMIZER)
                self._nesting.closure_ends()
                self._optimizer_at_ns += now_ns() - began

        return update_wrapper(around, closure)


def _phases(began: int, first: int, forward: int, loaded: int, optimizer: int, now: int, *,
            is_inference: bool) -> StepPhases:
    """Returns the parts of a step from its times."""
    span = now - began
    if not first:
        return span, UNKNOWN, UNKNOWN, UNKNOWN, optimizer
    # in inference there is no backward: the time between forward calls counts as loading data
    data = span - forward - optimizer if is_inference else first - began + loaded
    return span, data, forward, max(0, span - data - forward - optimizer), optimizer
