"""torch's communication as C++ has it: kernels in front of the c10d operators, and works that have not ended.

The kernels see what DDP, FSDP, DTensor and functional collectives issue too. A work that began under the profiler has
its slice written to when it ends.
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
from distprof.model.scopes import Guard
from distprof.own import time


class C10dKernels:
    """Puts them there in `start`, takes them away in `stop`."""

    def __init__(self, before: Callable[[], None], after: Callable[..., None]) -> None:
        """Prepares.

        Args:
            before: Called in front of each operator.
            after: Called behind it: name, arguments by name (without those left at their default), times of call and
                return, what it returned, and the Python frame that called it.
        """
        self._before = before
        self._after = after
        self._library: Any = None
        self._made: list[tuple[str, Callable[..., Any]]] = []
        """Names of operators, and what goes in front of them: made once, as it may be put there again and again."""

    def start(self) -> None:
        """Puts a kernel in front of each operator."""
        if not self._made:
            packets = [getattr(torch.ops.c10d, operator, None) for operator in OP_OF_C10D]
            overloads = [packet.default for packet in packets if packet is not None]
            self._made = [(one._schema.name, self._kernel(one)) for one in overloads]
        self._library = torch.library.Library("c10d", "IMPL")
        for name, kernel in self._made:
            self._library.m.impl(name, "BackendSelect", kernel, True)  # `impl` of torch looks at more, and takes longer

    def stop(self) -> bool:
        """Removes them; true if they were there."""
        library, self._library = self._library, None
        if library is not None:
            library._destroy()
        return library is not None

    def _kernel(self, overload: torch._ops.OpOverload) -> Callable[..., Any]:
        after = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
        operator = overload._schema.name.removeprefix("c10d::")
        names = [argument.name for argument in overload._schema.arguments]

        def kernel(keys: torch.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
            self._before()
            enqueue_ns = time.time_ns()
            output = overload.redispatch(keys & after, *args, **kwargs)
            times = (enqueue_ns, time.time_ns())
            given = dict(zip(names, args, strict=False)) | kwargs
            self._after(operator, given, times, output, sys._getframe().f_back)
            return output

        return kernel


def unboxed(output: Any) -> Any:
    """The work that an operator returned; None from ops that a backend gathers up."""
    try:
        return dist.Work.unbox(output[-1] if isinstance(output, tuple) else output)
    except (RuntimeError, TypeError):
        return None


HOST = torch.device("cpu")
LOOK_EVERY_S = 0.0005
MOST_AT_FIRST = 64
MOST_POINT_TO_POINT = 64
"""Each keeps its tensors alive until the script waits for it, which some never do."""


class RunningWorks:
    """Works of gloo. Its threads end collectives; a send or receive ends where the script waits for it."""

    def __init__(self, guard: Guard) -> None:
        self.is_on = False
        """True while a session is: what begins later is no part of it."""
        self._collectives: list[Any] = []
        self._most = MOST_AT_FIRST
        self._single: list[Any] = []
        self._kernels = C10dKernels(lambda: None, guard(self._on_call))

    def watch(self) -> None:
        """Looks for works by itself, where nobody else calls `add`."""
        if dist.is_available():
            self._kernels.start()

    def stop_watching(self) -> None:
        """Ends that."""
        self._kernels.stop()

    def _on_call(self, operator: str, given: Mapping[str, Any], _times: object, output: object,
                 _caller: object) -> None:
        self.add(OP_OF_C10D[operator], dist.ProcessGroup.unbox(given["process_group"]), unboxed(output),
                 device_of(given))

    def add(self, op: str, group: object, work: object, device: torch.device) -> None:
        """A group was given work; None where its backend gathers up several calls."""
        # a reduce_scatter is never complete there; who waits for it waits for all parts of it
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
        """True once all have ended.

        Args:
            patience_s: How long it may take; sends and receives that the script has not waited for take no time.
        """
        give_up = time.monotonic() + patience_s
        while self._drop_completed():
            if time.monotonic() > give_up:
                return False
            with suppress(OSError):  # where a program shifts the clocks of the process
                time.sleep(LOOK_EVERY_S)
        # a work of which only we know ends with our reference
        known, self._single = [weakref.ref(work) for work in self._single], []
        self._single = [work for work in (one() for one in known) if work is not None and not work.is_completed()]
        return not self._single

    def forget(self) -> None:
        """The session is over."""
        self._collectives, self._single, self._most = [], [], MOST_AT_FIRST

    def _drop_completed(self) -> bool:
        """True if some are left."""
        self._collectives = [work for work in self._collectives if not work.is_completed()]
        return bool(self._collectives)


def backend_name(group: Any, device: torch.device) -> str | None:
    """The backend, like gloo, that communicates data of this device; None where the group has none for it."""
    try:
        return str(group._get_backend(device).name())
    except RuntimeError:
        return None


def device_of(given: Mapping[str, Any]) -> torch.device:
    """Where the tensors of an operator are, by its arguments; the host where it has none."""
    return next((first.device for value in given.values() if (first := _first_tensor(value)) is not None), HOST)


def _first_tensor(value: object) -> torch.Tensor | None:
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
    return value if isinstance(value, torch.Tensor) else None
