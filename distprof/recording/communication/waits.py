"""Notes when a thread of this process waits for which communication op.

Waits from Python (the script, FSDP, pipelines, torch.distributed itself) call `Work.wait`. Functional collectives wait
in an operator. Waits inside C++ are known from the functions that contain them, and from the end of backward
(`backward_end`).
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.reductions import StorageWeakRef

from distprof.contract.tables import WAIT_SLICE
from distprof.model.compiled import never_compile
from distprof.model.scopes import Guard
from distprof.own import time
from distprof.recording.communication.backward_end import BackwardEnd
from distprof.recording.communication.collective_call import CollectiveCall, note_begin, note_wait

IN_FLIGHT = ("_broadcast_coalesced",)
"""Functions of torch.distributed that wait for an op after issuing the next one."""
ONE_BY_ONE = ("_rebuild_buckets",)
"""Methods of DDP's reducer that wait for each op before they continue."""
MOST_STORAGES = 256
MOST_WRITES = 64
"""Maximum number of calls remembered per storage: some scripts reduce the same tensor again and again."""

Storage = tuple[Any, list[CollectiveCall]]


class WaitWatch:
    """Observes waits between `start` and `stop`."""

    def __init__(self, guard: Guard, calls: list[CollectiveCall]) -> None:
        """Begins with no waits; `calls` is the list to which calls are added as they are issued."""
        self._calls = calls
        self._by_work: weakref.WeakKeyDictionary[Any, CollectiveCall] = weakref.WeakKeyDictionary()
        self._by_storage: dict[int, Storage] = {}
        self._latest: dict[int, Any] = {}
        self._backward = BackwardEnd(guard)
        self._work_waited, self._tensor_waited = guard(self._on_work), guard(self._on_tensor)
        self._function_waited = guard(self._on_function)
        self._work_waits, self._tensor_waits = guard(self._before_work), guard(self._before_tensor)
        self._replaced: list[tuple[Any, str, Any]] = []
        self._library: Any = None
        self._wait_kernel: Callable[..., torch.Tensor] | None = None
        """Created once, as `start` may be called many times."""

    def start(self) -> None:
        """Wraps what waits."""
        self._replace(dist.Work, "wait", self._waiting)
        for name in IN_FLIGHT:
            self._replace(dist, name, lambda function: self._blocking(function, in_flight=True))
        reducer: Any = getattr(dist, "Reducer", None)
        for name in ONE_BY_ONE:
            self._replace(reducer, name, lambda function: self._blocking(function, in_flight=False))
        self._library = torch.library.Library("_c10d_functional", "IMPL")
        overload = torch.ops._c10d_functional.wait_tensor.default
        self._wait_kernel = self._wait_kernel or self._kernel(overload)
        # torch's own `impl` checks more and is slower
        self._library.m.impl(overload._schema.name, "BackendSelect", self._wait_kernel, True)

    def stop(self) -> None:
        """Restores torch's own functions and drops what is not waited for."""
        if self._library is not None:
            self._library._destroy()
            self._library = None
        for owner, name, own in self._replaced:
            setattr(owner, name, own)
        self._replaced = []
        self._by_storage.clear()
        self._latest.clear()
        self._backward.forget()

    def issued(self, call: CollectiveCall, operator: str, work: object, tensors: Sequence[torch.Tensor],
               caller: FrameType | None) -> None:
        """Registers a call.

        Args:
            call: The labelled call.
            operator: Its c10d operator.
            work: Its work; None if a backend coalesces calls.
            tensors: The tensors that it writes to.
            caller: The Python frame that called it.
        """
        if work is not None:
            self._by_work[work] = call
            # if it died before Python gets it, C++ would create another wrapper for it: this keeps it alive until then
            self._latest[call.thread] = work
            self._backward.issued(call, operator, work, caller)
        for storage in filter(None, map(_storage, tensors)):
            self._write(call, storage)

    def _write(self, call: CollectiveCall, storage: torch.UntypedStorage) -> None:
        # while a weak reference exists, no other storage gets the same address
        reference, calls = self._by_storage.pop(storage._cdata, None) or (StorageWeakRef(storage), [])
        waiting = [*(one for one in calls if one.wait_start_ns is None), call]
        self._by_storage[storage._cdata] = reference, waiting[-MOST_WRITES:]
        if len(self._by_storage) > MOST_STORAGES:
            del self._by_storage[next(iter(self._by_storage))]

    def _replace(self, owner: object, name: str, around: Callable[[Any], Any]) -> None:
        own = getattr(owner, name, None)
        if own is not None:
            self._replaced.append((owner, name, own))
            setattr(owner, name, around(own))

    def _waiting(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        scope = torch._C._profiler._RecordFunctionFast

        def waits(work: object, *args: Any, **kwargs: Any) -> Any:
            self._work_waits(work)
            start_ns = time.time_ns()
            with scope(WAIT_SLICE):
                result = wait(work, *args, **kwargs)
            self._work_waited(work, start_ns, time.time_ns())
            return result

        return waits

    def _before_work(self, work: object) -> None:
        call = self._by_work.get(work)
        if call is not None:
            note_begin(call)

    def _on_work(self, work: object, start_ns: int, end_ns: int) -> None:
        call = self._by_work.get(work)
        if call is not None:
            note_wait(call, start_ns, end_ns)

    def _kernel(self, overload: torch._ops.OpOverload) -> Callable[..., Any]:
        after = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)

        def kernel(keys: torch.DispatchKeySet, tensor: torch.Tensor) -> torch.Tensor:
            self._tensor_waits(tensor)
            start_ns = time.time_ns()
            output: torch.Tensor = overload.redispatch(keys & after, tensor)
            self._tensor_waited(tensor, start_ns, time.time_ns())
            return output

        never_compile(kernel)
        return kernel

    def _before_tensor(self, tensor: torch.Tensor) -> None:
        storage = _storage(tensor)
        for call in self._by_storage.get(storage._cdata, (None, []))[1] if storage is not None else []:
            note_begin(call)

    def _on_tensor(self, tensor: torch.Tensor, start_ns: int, end_ns: int) -> None:
        storage = _storage(tensor)
        _, calls = self._by_storage.pop(storage._cdata, (None, [])) if storage is not None else (None, [])
        for call in calls:
            note_wait(call, start_ns, end_ns)

    def _blocking(self, function: Callable[..., Any], *, in_flight: bool) -> Callable[..., Any]:
        def waits(*args: Any, **kwargs: Any) -> Any:
            first = len(self._calls)
            result = function(*args, **kwargs)
            self._function_waited(first, time.time_ns(), in_flight)
            return result

        return waits

    def _on_function(self, first: int, end_ns: int, in_flight: bool) -> None:  # noqa: FBT001 (a callback)
        mine = [call for call in self._calls[first:] if call.thread == threading.get_native_id()]
        for call, following in zip(mine, [*mine[1:], None], strict=False):
            if following is None:
                note_wait(call, call.returned_ns, end_ns, several=True)
            elif in_flight:
                note_wait(call, following.returned_ns, end_ns, several=True)
            else:
                note_wait(call, call.returned_ns, following.enqueue_ns, several=True)


def _storage(tensor: torch.Tensor) -> Any:
    try:
        return tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):
        return None  # a sparse tensor has none
