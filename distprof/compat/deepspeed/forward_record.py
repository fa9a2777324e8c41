"""The forward calls of a model between start and stop, summed by module."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Collection
from contextlib import ExitStack
from typing import Any

from torch import nn

from distprof.counting.opaque_calls import OpaqueCalls
from distprof.counting.torch_functions import FunctionPass
from distprof.model.call_paths import CallPath
from distprof.model.compiled import ForcedEager
from distprof.model.modules import Model, ModuleMap, Site
from distprof.model.scopes import Frame, ModuleScopes
from distprof.peers.deepspeed import deepspeed_line
from distprof.peers.deepspeed_bugs import RECURRENT_TYPES
from distprof.peers.deepspeed_formulas import RULES
from distprof.timing.stopwatch import Stopwatch, stopwatch

OUTSIDE = CallPath(None, None)


class ForwardRecord:
    """Watches the forward calls of a model.

    Args:
        model: All of its modules are watched.
        ignored: Exact types of modules whose work counts as that of the module around them.
        exact: Counts what DeepSpeed counts, bugs included; recurrent layers and ignored types have no time then.
    """

    def __init__(self, model: nn.Module, *, ignored: Collection[type], exact: bool) -> None:
        self._exact = exact
        self._paths: dict[int, CallPath] = {}
        self._modules: dict[CallPath, int] = {}
        self._untimed: set[int] = set()
        self._scopes = ModuleScopes(ModuleMap(), lambda function: function, lambda frame: None, one_thread=True)
        self._functions = FunctionPass(self._running_path, RULES)
        self._clock: Stopwatch = stopwatch()
        self._times: dict[int, list[tuple[Any, Any]]] = defaultdict(list)
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

    def start(self, *, counts: bool = True, times: bool = True) -> None:
        """Switches hooks and mode on; compiled modules run uncompiled meanwhile, for what they hide.

        Args:
            counts: Watches function calls, which costs time.
            times: Takes times.
        """
        eager = ForcedEager()
        eager.start()
        self._on.callback(eager.stop)
        self._scopes.add(self)
        self._on.callback(self._scopes.remove, self)
        self._takes_times = times
        if counts:
            opaque = OpaqueCalls(self._functions.aside)
            opaque.start()
            self._on.callback(opaque.stop)
            self._functions.start()
            self._on.callback(self._functions.stop)

    def stop(self) -> None:
        """Switches them off; what was seen stays."""
        self._on.close()

    def clear(self) -> None:
        """Forgets what was seen."""
        self._functions.forget()
        self._times.clear()

    def enter(self, frame: Frame) -> None:
        """Notes whose work begins, and when."""
        outer = frame.outer.data[self][0] if frame.outer is not None and self in frame.outer.data else OUTSIDE
        frame.data[self] = self._paths.get(id(frame.module), outer), self._clock.mark()

    def exit(self, frame: Frame, _args: Any, _kwargs: Any, _result: Any) -> None:
        """Notes when it ended; a call inside a call of the same module is part of that."""
        if self in frame.data and self._is_timed(frame):
            self._times[id(frame.module)].append((frame.data[self][1], self._clock.mark()))

    def amounts(self) -> dict[int, tuple[int, int]]:
        """FLOPs and MACs by id of the module that called the functions, submodules apart."""
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
        """Measured time by id of the module, submodules included."""
        self._clock.settle()
        return {key: sum(self._clock.resolve(end) - self._clock.resolve(begin) for begin, end in times) / 1e9
                for key, times in self._times.items()}

    def _running_path(self) -> CallPath:
        frame = self._scopes.current
        path: CallPath = OUTSIDE if frame is None or self not in frame.data else frame.data[self][0]
        return path

    def _is_timed(self, frame: Frame) -> bool:
        outer = frame.outer
        while outer is not None and outer.module is not frame.module:
            outer = outer.outer
        return self._takes_times and outer is None and not frame.in_backward and id(frame.module) not in self._untimed
