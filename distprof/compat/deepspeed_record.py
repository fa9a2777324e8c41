"""The forward calls of a model between start and stop: function calls and times come in, sums by module go out."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Collection
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.overrides import _pop_mode, _push_mode

from distprof.functions import FunctionPass
from distprof.modules import Model, ModuleMap, Site
from distprof.paths import CallPath
from distprof.peers.deepspeed import line_of
from distprof.peers.deepspeed_bugs import RECURRENT_TYPES
from distprof.scopes import Frame, ModuleScopes
from distprof.stopwatch import Stopwatch, stopwatch

OUTSIDE = CallPath(None, None)


class ForwardRecord:
    """Watches every module of a model but those of ignored types, whose work is that of the module around them."""

    def __init__(self, model: nn.Module, *, ignored: Collection[type], exact: bool) -> None:
        self._exact = exact
        self._paths: dict[int, CallPath] = {}
        self._modules: dict[CallPath, int] = {}
        self._untimed: set[int] = set()
        self._scopes = ModuleScopes(ModuleMap(), lambda function: function, lambda frame: None, one_thread=True)
        self._functions = FunctionPass(self._running_path)
        self._clock: Stopwatch = stopwatch()
        self._times: dict[int, list[tuple[Any, Any]]] = defaultdict(list)
        self._on = ExitStack()
        self._amounts: tuple[int, dict[int, tuple[int, int]]] = (0, {})
        owner = Model()
        for name, module in model.named_modules():
            if type(module) not in ignored:
                site = Site(owner, name, type(module).__name__, None, weakref.ref(module))
                path = self._paths[id(module)] = OUTSIDE.child(site)
                self._modules[path] = id(module)
            if exact and (type(module) in ignored or type(module) in RECURRENT_TYPES):
                self._untimed.add(id(module))  # as the package does

    @property
    def is_on(self) -> bool:
        """True between start and stop."""
        return self._functions in _function_modes()

    def start(self) -> None:
        """Switches hooks and mode on; compiled modules run uncompiled meanwhile, for what they hide."""
        self._on.enter_context(torch.compiler.set_stance("force_eager"))
        self._scopes.add(self)
        self._on.callback(self._scopes.remove, self)
        self._functions.__enter__()  # type: ignore[no-untyped-call]
        self._on.callback(_take_off, self._functions)

    def stop(self) -> None:
        """Switches them off; what was seen stays."""
        self._on.close()

    def clear(self) -> None:
        """Forgets what was seen."""
        self._functions.calls.clear()
        self._times.clear()

    def enter(self, frame: Frame) -> None:
        """Notes whose work begins, and when."""
        outer = frame.outer.data[self][0] if frame.outer is not None and self in frame.outer.data else OUTSIDE
        frame.data[self] = self._paths.get(id(frame.module), outer), self._clock.mark()

    def exit(self, frame: Frame, _args: Any, _kwargs: Any, _result: Any) -> None:
        """Notes when it ended; a call inside a call of the same module is part of that."""
        key = id(frame.module)
        if self in frame.data and not frame.recompute and not self._is_timed_around(frame) and key not in self._untimed:
            self._times[key].append((frame.data[self][1], self._clock.mark()))

    def amounts(self) -> dict[int, tuple[int, int]]:
        """FLOPs and MACs by id of the module that called the functions, submodules apart."""
        calls = self._functions.calls
        seen = sum(calls.values())
        if seen != self._amounts[0]:
            sums: dict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
            for call, number in calls.items():
                line = line_of(call, number, exact=self._exact) if call.path in self._modules else None
                if line is not None:
                    key = self._modules[call.path]
                    sums[key] = sums[key][0] + line.flops, sums[key][1] + line.macs
            self._amounts = seen, sums
        return self._amounts[1]

    def seconds(self) -> dict[int, float]:
        """Measured time by id of the module, submodules included."""
        self._clock.settle()
        return {key: sum(self._clock.resolve(end) - self._clock.resolve(begin) for begin, end in times) / 1e9
                for key, times in self._times.items()}

    def _running_path(self) -> CallPath:
        frame = self._scopes.current
        path: CallPath = OUTSIDE if frame is None or self not in frame.data else frame.data[self][0]
        return path

    def _is_timed_around(self, frame: Frame) -> bool:
        outer = frame.outer
        while outer is not None and outer.module is not frame.module:
            outer = outer.outer
        return outer is not None


def _function_modes() -> list[Any]:
    return [torch._C._get_function_stack_at(index) for index in range(torch._C._len_torch_function_stack())]


def _take_off(mode: FunctionPass) -> None:
    """Removes one mode; those the program has switched on since stay on."""
    above: list[Any] = []
    while _function_modes() and (top := _pop_mode()) is not mode:
        above.append(top)
    for other in reversed(above):
        _push_mode(other)
