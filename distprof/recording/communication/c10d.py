"""Observes torch's communication in C++: kernels in front of the c10d operators, and works of gloo that still run.

The kernels also see what DDP, FSDP, DTensor and functional collectives issue. A work that begins under the profiler
writes to its slice when it ends, so a session may only end after it.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist

from distprof.contract.collective_ops import OP_OF_C10D, POINT_TO_POINT
from distprof.model.compiled import never_compile
from distprof.model.scopes import Guard
from distprof.own import time


class C10dKernels:
    """Kernels in front of the c10d operators, installed by `start` and removed by `stop`."""

    def __init__(self, before: Callable[[], None], after: Callable[..., None]) -> None:
        """Stores the callbacks.

        Args:
            before: Called before each operator.
            after: Called after each operator: name, arguments by name (without those left at their default), times of
                call and return, result, and the Python frame that called it.
        """
        self._before = before
        self._after = after
        self.own_ns = 0
        """Time spent in the callbacks."""
        self._library: Any = None
        self._made: list[tuple[str, Callable[..., Any]]] = []
        """Names of operators with their kernels: created once, as `start` may be called many times."""

    def start(self) -> None:
        """Installs a kernel in front of each operator."""
        if not self._made:
            packets = [getattr(torch.ops.c10d, operator, None) for operator in OP_OF_C10D]
            overloads = [packet.default for packet in packets if packet is not None]
            self._made = [(one._schema.name, self._kernel(one)) for one in overloads]
        self._library = torch.library.Library("c10d", "IMPL")
        for name, kernel in self._made:
            self._library.m.impl(name, "BackendSelect", kernel, True)  # torch's own `impl` checks more and is slower

    def stop(self) -> bool:
        """Removes the kernels; returns whether they were installed."""
        library, self._library = self._library, None
        if library is not None:
            library._destroy()
        return library is not None

    def _kernel(self, overload: torch._ops.OpOverload) -> Callable[..., Any]:
        after = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
        operator = overload._schema.name.removeprefix("c10d::")
        names = [argument.name for argument in overload._schema.arguments]

        def kernel(keys: torch.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
            began_ns = time.perf_counter_ns()
            self._before()
            enqueue_ns = time.time_ns()
            output = overload.redispatch(keys & after, *args, **kwargs)
            times = (enqueue_ns, time.time_ns())
            given = dict(zip(names, args, strict=False)) | kwargs
            self._after(operator, given, times, output, sys._getframe().f_back)
            self.own_ns += max(0, time.perf_counter_ns() - began_ns - (times[1] - times[0]))
            return output

        never_compile(kernel)
        return kernel


def unboxed(output: Any) -> Any:
    """Returns the work that an operator returned; None if a backend coalesces calls."""
    try:
        return dist.Work.unbox(output[-1] if isinstance(output, tuple) else output)
    except (RuntimeError, TypeError):
        return None


HOST = torch.device("cpu")
LOOK_EVERY_S = 0.0005
MOST_AT_FIRST = 64
MOST_POINT_TO_POINT = 64
"""Each keeps its tensors alive until the script waits for it, which some scripts never do."""


class RunningWorks:
    """Running works of gloo. Its threads end collectives; a send or receive ends when the script waits for it."""

    def __init__(self, guard: Guard) -> None:
        self.is_on = False
        """True during a profiler session: works that begin later are not part of it."""
        self._collectives: list[Any] = []
        self._most = MOST_AT_FIRST
        self._single: list[Any] = []
        self._kernels = C10dKernels(lambda: None, guard(self._on_call))

    def watch(self) -> None:
        """Begins to observe works itself, for passes in which nobody else calls `add`."""
        if dist.is_available():
            self._kernels.start()

    def stop_watching(self) -> None:
        """Ends what `watch` began."""
        self._kernels.stop()

    def _on_call(self, operator: str, given: Mapping[str, Any], _times: object, output: object,
                 _caller: object) -> None:
        self.add(OP_OF_C10D[operator], dist.ProcessGroup.unbox(given["process_group"]), unboxed(output),
                 device_of(given))

    def add(self, op: str, group: object, work: object, device: torch.device) -> None:
        """Adds the work of a call of `group`; None if its backend coalesces calls."""
        # gloo's work of a reduce_scatter never completes; waiting for it waits for all its parts
        if not self.is_on or work is None or op == "reduce_scatter" or backend_name(group, device) != "gloo":
            return
        if op in POINT_TO_POINT:
            self._single = [one for one in self._single if not one.is_completed()]
            self._single += [work] if len(self._single) < MOST_POINT_TO_POINT else []
            return
        self._collectives.append(work)
        if len(self._collectives) > self._most:
            self._drop_completed()
            self._most = max(MOST_AT_FIRST, 2 * len(self._collectives))

    def are_over(self, patience_s: float) -> bool:
        """Returns whether all works have ended.

        Args:
            patience_s: How long to wait for collectives; sends and receives that the script has not waited for are only
                looked at.
        """
        give_up = time.monotonic() + patience_s
        while self._drop_completed():
            if time.monotonic() > give_up:
                return False
            with suppress(OSError):  # if a program shifts the clocks of the process
                time.sleep(LOOK_EVERY_S)
        # a work that only we refer to ends with our reference
        known, self._single = [weakref.ref(work) for work in self._single], []
        self._single = [work for work in (one() for one in known) if work is not None and not work.is_completed()]
        return not self._single

    def forget(self) -> None:
        """Drops all works, after the session has ended."""
        self._collectives, self._single, self._most = [], [], MOST_AT_FIRST

    def _drop_completed(self) -> bool:
        """Drops completed collectives; true if some are left."""
        self._collectives = [work for work in self._collectives if not work.is_completed()]
        return bool(self._collectives)


def backend_name(group: Any, device: torch.device) -> str | None:
    """Returns the backend, such as gloo, for data on this device; None if the group has none for it."""
    try:
        return str(group._get_backend(device).name())
    except RuntimeError:
        return None


def device_of(given: Mapping[str, Any]) -> torch.device:
    """Returns the device of the first tensor among an operator's arguments; the host if there is none."""
    return next((first.device for value in given.values() if (first := _first_tensor(value)) is not None), HOST)


def _first_tensor(value: object) -> torch.Tensor | None:
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
    return value if isinstance(value, torch.Tensor) else None
