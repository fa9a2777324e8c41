"""How long the end of backward waits for the all_reduces of DDP, which it does in C++."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import Variable

from distprof.model.scopes import Guard
from distprof.recording.blocking.blocking_log import COMMUNICATION, BlockingLog, Wait
from distprof.recording.blocking.origins import caller_of_callback
from distprof.recording.communication.backward_end import BUCKETS, is_of_ddp

WAIT = Wait("all_reduce of DDP", COMMUNICATION, "cpu", blocking=True)


class DdpWaits:
    """Watches them between `start` and `stop`: by callbacks of autograd just before the one that waits and just behind.

    On a device a stream waits instead.
    """

    def __init__(self, log: BlockingLog, guard: Guard) -> None:
        self._log = log
        self._issued, self._begins, self._ends = guard(self._on_issued), guard(self._on_begin), guard(self._on_end)
        self._began: dict[int, tuple[int, bool]] = {}
        """By number of the graph task: when the wait began at the earliest; and whether that was in a callback."""
        self._library: Any = None

    def start(self) -> None:
        """Puts a kernel in front of the operator."""
        if dist.is_available():
            self._library = torch.library.Library("c10d", "IMPL")
            self._library.impl(torch.ops.c10d.allreduce_.default, self._kernel(torch.ops.c10d.allreduce_.default),
                               "BackendSelect", with_keyset=True)

    def stop(self) -> None:
        """Removes it."""
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
            self._log.add(WAIT, time.perf_counter_ns() - self._began.pop(task)[0], caller_of_callback())
