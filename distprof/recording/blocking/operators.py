"""Operators that make the host wait: a Python kernel in front of each observes its calls; no other operator is touched.

Kernels of the sync pass must be in this folder, by which `origins.py` recognises them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import Variable

from distprof.model.compiled import never_compile
from distprof.model.scopes import Guard
from distprof.own import time
from distprof.recording.blocking.blocking_log import COMMUNICATION, DEVICE, BlockingLog, Wait, is_on_device, known
from distprof.recording.blocking.origins import caller_of_callback
from distprof.recording.communication.backward_end import BUCKETS, is_of_ddp

READING = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "equal",
           "bincount", "repeat_interleave.Tensor")
"""Operators of aten whose result, or its shape, depends on values: the host waits for a device to compute them."""
COPY = "copy_"
WORDS = {"_local_scalar_dense": "aten::item"}
"""Operator -> a more familiar name."""
SCALARS = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}


class WaitingOperators:
    """Observes waiting operators between `start` and `stop`."""

    def __init__(self, log: BlockingLog) -> None:
        self._log = log
        self._libraries: list[Any] = []
        self._on_device = False

    def start(self) -> None:
        """Installs a kernel in front of each operator."""
        self._on_device = is_on_device()
        aten = self._library("aten")
        for name in READING:
            self._implement(aten, torch.ops.aten, name, self._reading)
        if self._on_device:  # without a device no copy waits, and copies are frequent
            self._implement(aten, torch.ops.aten, COPY, copying)
        if dist.is_available():
            self._implement(self._library("_c10d_functional"), torch.ops._c10d_functional, "wait_tensor",
                            _communicating)
            self._implement(self._library("c10d"), torch.ops.c10d, "monitored_barrier_", _communicating)

    def stop(self) -> None:
        """Removes the kernels."""
        for library in self._libraries:
            library._destroy()
        self._libraries = []

    def _library(self, namespace: str) -> Any:
        library = torch.library.Library(namespace, "IMPL")
        self._libraries.append(library)
        return library

    def _implement(self, library: torch.library.Library, namespace: Any, name: str,
                   wait_of: Callable[..., Wait | None]) -> None:
        packet, _, which = name.partition(".")
        overload = getattr(getattr(namespace, packet, None), which or "default", None)
        if overload is not None:
            library.impl(overload, self._kernel(overload, WORDS.get(packet, f"{namespace.name}::{packet}"), wait_of),
                         "BackendSelect", with_keyset=True)

    def _kernel(self, overload: torch._ops.OpOverload, op: str,
                wait_of: Callable[..., Wait | None]) -> Callable[..., Any]:
        after = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
        log, places = self._log, _tensor_places(overload)

        def kernel(keys: torch.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
            return log.call(known(wait_of, op, *args, **kwargs), sys._getframe(), overload.redispatch,
                            (keys & after, *_as_tensors(args, places)), kwargs)

        never_compile(kernel)
        return kernel

    def _reading(self, op: str, *args: Any, **_kwargs: object) -> Wait | None:
        return self._of(op, args[0])

    def _of(self, op: str, tensor: object) -> Wait | None:
        kind = tensor.device.type if isinstance(tensor, torch.Tensor) else "meta"
        if kind == "meta" or (kind == "cpu" and self._on_device):
            return None  # in a job on a device, the script keeps some tensors on the host on purpose
        return Wait(op, DEVICE, kind, blocking=kind != "cpu")


def copying(op: str, to: torch.Tensor, source: Any, *flags: bool, **named: bool) -> Wait | None:
    """Returns the wait of a copy between host and device; None if it is non-blocking and its memory allows that."""
    kinds = {to.device.type, source.device.type} if isinstance(source, torch.Tensor) else set()
    if len(kinds) < 2 or "cpu" not in kinds or "meta" in kinds:
        return None
    to_host = to.device.type == "cpu"
    if named.get("non_blocking", any(flags)) and not (to_host and not to.is_pinned()):
        return None
    return Wait(op, DEVICE, (source if to_host else to).device.type, blocking=True)


def _communicating(op: str, *args: Any, **_kwargs: object) -> Wait | None:
    if isinstance(args[0], torch.Tensor) and args[0].device.type != "cpu":
        return None  # a stream waits, not the host
    return Wait(op, COMMUNICATION, "cpu", blocking=True)


def _tensor_places(overload: torch._ops.OpOverload) -> tuple[int, ...]:
    return tuple(index for index, one in enumerate(overload._schema.arguments) if str(one.type) == "Tensor")


def _as_tensors(args: tuple[Any, ...], places: tuple[int, ...]) -> tuple[Any, ...]:
    """Converts numbers to tensors where the operator takes tensors: Python kernels get numbers unconverted."""
    if all(isinstance(args[place], torch.Tensor) for place in places if place < len(args)):
        return args
    return tuple(torch.tensor(value, dtype=SCALARS.get(type(value))) if place in places and type(value) in SCALARS
                 else value for place, value in enumerate(args))


OF_DDP = Wait("all_reduce of DDP", COMMUNICATION, "cpu", blocking=True)


class DdpWaits:
    """How long the end of backward waits, in C++, for the all_reduces of DDP.

    Measured between `start` and `stop` by autograd callbacks just before and just after the one that waits. On a device
    a stream waits instead.
    """

    def __init__(self, log: BlockingLog, guard: Guard) -> None:
        self._log = log
        self._issued, self._begins, self._ends = guard(self._on_issued), guard(self._on_begin), guard(self._on_end)
        self._began: dict[int, tuple[int, bool]] = {}
        """Graph task id -> earliest possible start of the wait (ns), and whether it was issued in a callback."""
        self._library: Any = None

    def start(self) -> None:
        """Installs a kernel in front of the operator."""
        if dist.is_available():
            self._library = torch.library.Library("c10d", "IMPL")
            self._library.impl(torch.ops.c10d.allreduce_.default, self._kernel(torch.ops.c10d.allreduce_.default),
                               "BackendSelect", with_keyset=True)

    def stop(self) -> None:
        """Removes the kernel."""
        if self._library is not None:
            self._library._destroy()
            self._library = None
        self._began.clear()

    def _kernel(self, overload: torch._ops.OpOverload) -> Callable[..., Any]:
        after = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)

        def kernel(keys: torch.DispatchKeySet, buckets: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
            output = overload.redispatch(keys & after, buckets, *args, **kwargs)
            self._issued(buckets, sys._getframe().f_back)
            return output

        never_compile(kernel)
        return kernel

    def _on_issued(self, buckets: Sequence[torch.Tensor], caller: FrameType | None) -> None:
        task = torch._C._current_graph_task_id()
        if task == -1 or any(bucket.is_cuda for bucket in buckets) or not is_of_ddp(BUCKETS, caller):
            return
        if task not in self._began:
            Variable._execution_engine.queue_callback(partial(self._begins, task))
        in_callback = torch._C._current_autograd_node() is None
        self._began[task] = time.perf_counter_ns(), self._began.get(task, (0, in_callback))[1]

    def _on_begin(self, task: int) -> None:
        if task in self._began:
            issued_ns, in_callback = self._began[task]
            self._began[task] = issued_ns if in_callback else time.perf_counter_ns(), in_callback
            Variable._execution_engine.queue_callback(partial(self._ends, task))

    def _on_end(self, task: int) -> None:
        if task in self._began:
            self._log.add(OF_DDP, time.perf_counter_ns() - self._began.pop(task)[0], caller_of_callback())
