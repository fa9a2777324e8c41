"""Records the forward calls of a model between start and stop, summed by module."""

from __future__ import annotations

import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any

import torch
from torch import nn

from distprof.counting.opaque_calls import OpaqueCalls
from distprof.counting.torch_functions import FunctionPass
from distprof.model.call_paths import CallPath
from distprof.model.compiled import ForcedEager
from distprof.model.modules import Model, ModuleMap, Site
from distprof.model.scopes import Frame, ModuleScopes
from distprof.peers.deepspeed import RECURRENT_TYPES, deepspeed_line
from distprof.peers.deepspeed_formulas import RULES
from distprof.timing.stopwatch import OwnTime, Stopwatch, stopwatch

OUTSIDE = CallPath(None, None)


class UnfeltFunctions(FunctionPass):
    """A `FunctionPass` whose own work is excluded from measured times."""

    def __init__(self, own: OwnTime, path: Callable[[], CallPath], names: Container[str]) -> None:
        super().__init__(path, names)
        self._own = own

    def __torch_function__(self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        self._own.begin()
        try:
            return super().__torch_function__(func, types, args, kwargs)
        finally:
            self._own.end()

    def _call(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._own.end()
        try:
            return func(*args, **kwargs)
        finally:
            self._own.begin()


class ForwardRecord:
    """Watches the forward calls of a model.

    Args:
        model: All its modules are recorded.
        ignored: Exact types of modules whose work counts as that of the enclosing module.
        exact: Whether to count like DeepSpeed, including its bugs; recurrent layers and ignored types then have no
            time.
    """

    def __init__(self, model: nn.Module, *, ignored: Collection[type], exact: bool) -> None:
        self._exact = exact
        self._paths: dict[int, CallPath] = {}
        self._modules: dict[CallPath, int] = {}
        self._untimed: set[int] = set()
        self._clock: Stopwatch = stopwatch()
        on_host = self._clock.resolves_at_once
        self._own = OwnTime(self._clock.mark if on_host else time.perf_counter_ns)
        self._scopes = ModuleScopes(ModuleMap(), self._own.left_out, lambda frame: None, one_thread=True)
        self._functions = UnfeltFunctions(self._own, self._running_path, RULES)
        self._mark = self._own.now_ns if on_host else self._clock.mark
        self._times: dict[int, list[tuple[Any, Any]]] = defaultdict(list)
        self._alone: list[tuple[Any, Any]] = []
        """Marks at the beginning and end of calls without hooks and mode."""
        self._root = id(model)
        self._takes_times = True
        self._on = ExitStack()
        self._amounts: tuple[int, dict[int, tuple[int, int]]] = (0, {})
        owner = Model()
        for name, module in model.named_modules():
            if type(module) not in ignored:
                site = Site(owner, name, type(module).__name__, None, weakref.ref(module))
                path = self._paths[id(module)] = OUTSIDE.child(site)
                self._modules[path] = id(module)
            if exact and (type(module) in ignored or type(module) in RECURRENT_TYPES):
                self._untimed.add(id(module))

    def start(self, *, counts: bool = True, times: bool = True, inside: nn.Module | None = None) -> None:
        """Switches hooks and mode on; meanwhile compiled modules run uncompiled, because they would hide their
        functions.

        Args:
            counts: Whether to record function calls, which takes time.
            times: Whether to measure times.
            inside: A module whose call has already begun.
        """
        eager = ForcedEager()
        eager.start()
        self._on.callback(eager.stop)
        self._wait()
        self._scopes.add(self)
        self._on.callback(self._scopes.remove, self)
        self._takes_times = times
        if counts:
            opaque = OpaqueCalls(self._functions.aside)
            opaque.start()
            self._on.callback(opaque.stop)
            self._functions.start()
            self._on.callback(self._functions.stop)
        if inside is not None:
            self._scopes.begin_inside(inside)

    def stop(self) -> None:
        """Switches hooks and mode off; records are kept."""
        self._on.close()

    def watch(self, call: Callable[[], Any], *, counts: bool = True, times: bool = True) -> None:
        """Records one call."""
        self.start(counts=counts, times=times)
        try:
            call()
        finally:
            self.stop()

    def time_alone(self, call: Callable[[], Any]) -> None:
        """Times a call of the model without hooks and mode: the median of such calls is the time of the model."""
        self._wait()
        mark = self._mark
        begin = mark()
        call()
        self._alone.append((begin, mark()))

    def clear(self) -> None:
        """Forgets all records."""
        self._functions.forget()
        self._times.clear()

    def enter(self, frame: Frame) -> None:
        """Notes which module's work begins, and when."""
        outer = frame.outer.data[self][0] if frame.outer is not None and self in frame.outer.data else OUTSIDE
        frame.data[self] = self._paths.get(id(frame.module), outer), self._mark()

    def exit(self, frame: Frame, _args: tuple[Any, ...], _kwargs: dict[str, Any], _result: object) -> None:
        """Notes when a call ended; a nested call of the same module is part of the outer one."""
        if self in frame.data and self._is_timed(frame):
            self._times[id(frame.module)].append((frame.data[self][1], self._mark()))

    def amounts(self) -> dict[int, tuple[int, int]]:
        """Returns FLOPs and MACs by id of the module that called the functions, excluding submodules."""
        calls = self._functions.calls
        seen = sum(calls.values())
        if seen != self._amounts[0]:
            sums: dict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
            for call, number in calls.items():
                line = deepspeed_line(call, number, exact=self._exact) if call.path in self._modules else None
                if line is not None:
                    key = self._modules[call.path]
                    sums[key] = sums[key][0] + line.flops, sums[key][1] + line.macs
            self._amounts = seen, sums
        return self._amounts[1]

    def seconds(self) -> dict[int, float]:
        """Returns measured time by id of the module, including submodules.

        The model's time comes from calls without hooks and mode; modules get the fraction of it that they had with
        them.
        """
        self._clock.settle()
        found = {key: sum(map(self._seconds, times)) for key, times in self._times.items()}
        watched = found.get(self._root)
        if not self._alone or not watched:
            return found
        alone = median(map(self._seconds, self._alone))
        return {key: alone * (taken / watched) for key, taken in found.items()}

    def _seconds(self, marks: tuple[Any, Any]) -> float:
        begin, end = map(self._clock.resolve, marks)
        return (end - begin) / 1e9

    def _wait(self) -> None:
        """Waits until devices have completed their work."""
        if not self._clock.resolves_at_once:
            torch.accelerator.synchronize()

    def _running_path(self) -> CallPath:
        frame = self._scopes.current
        path: CallPath = OUTSIDE if frame is None or self not in frame.data else frame.data[self][0]
        return path

    def _is_timed(self, frame: Frame) -> bool:
        outer = frame.outer
        while outer is not None and outer.module is not frame.module:
            outer = outer.outer
        return self._takes_times and outer is None and not frame.in_backward and id(frame.module) not in self._untimed
