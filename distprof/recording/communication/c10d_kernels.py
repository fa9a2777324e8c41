"""Kernels in front of the c10d operators: they see what DDP, FSDP, DTensor and functional collectives issue too."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from distprof.contract.collective_ops import OP_OF_C10D


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

    def start(self) -> None:
        """Puts a kernel in front of each operator."""
        self._library = torch.library.Library("c10d", "IMPL")
        packets = [getattr(torch.ops.c10d, operator, None) for operator in OP_OF_C10D]
        for overload in (packet.default for packet in packets if packet is not None):
            self._library.impl(overload, self._kernel(overload), "BackendSelect", with_keyset=True)

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
