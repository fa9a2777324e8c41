"""The sync pass: what blocks the rank, with the line of the script that calls it.

How long the end of backward waits for the all_reduces of DDP, which it does in C++, is part of it.
"""

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

from distprof.contract.passes import SYNC
from distprof.contract.tables import WAITS, TableRow
from distprof.model.scopes import Guard
from distprof.recording.blocking.blocking_log import COMMUNICATION, BlockingLog, Wait
from distprof.recording.blocking.functions import WaitingFunctions
from distprof.recording.blocking.operators import WaitingOperators
from distprof.recording.blocking.origins import NodeOwners, caller_of_callback, is_in_kernel
from distprof.recording.communication.backward_end import BUCKETS, is_of_ddp
from distprof.recording.passes.protocol import Pass, PassContext
from distprof.recording.run_directory import RankFolder

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


class SyncSteps(Pass):
    """Steps in which operators and functions that wait are watched."""

    name = SYNC

    def __init__(self, context: PassContext) -> None:
        self._note = context.note
        self._owners = NodeOwners(context.scopes)
        self._log = BlockingLog(self._owners, guard=context.guard, step=context.step, phase=context.phase)
        self._parts = (self._owners, WaitingOperators(self._log), WaitingFunctions(self._log),
                       DdpWaits(self._log, context.guard))
        self._was_on = False

    def start(self) -> None:
        self._was_on = True
        self._log.start()
        for part in self._parts:
            part.start()

    def stop(self) -> None:
        for part in reversed(self._parts):
            part.stop()
        left_out, self._log.num_left_out = self._log.num_left_out, 0
        if left_out:
            self._note(f"the sync pass found too many different waiting lines; calls not recorded: {left_out}")

    def in_operator(self) -> bool:
        """Kernels are not taken away while one runs."""
        return is_in_kernel()

    def restart_step(self) -> None:
        self._log.forget_step()

    def next_step(self) -> None:
        self._log.next_step()

    def write(self, folder: RankFolder, steps: Sequence[TableRow], *, ended: bool, elsewhere: bool) -> None:
        if self._was_on:
            folder.write_rows(WAITS, self._log.rows())
