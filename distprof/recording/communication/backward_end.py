"""Notes when the thread that runs backward waits for DDP's all_reduces: inside C++, at the end of backward.

DDP queues an autograd callback when its last bucket is issued, and waits for all buckets in it. A callback that is
queued when the first bucket is issued runs just before that one; a callback queued by this one runs just after it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch.autograd import Variable
from torch.autograd.graph import _engine_run_backward

from distprof.model.scopes import Guard
from distprof.own import time
from distprof.recording.communication.collective_call import CollectiveCall, note_begin, note_wait

ENGINE = _engine_run_backward.__code__
BUCKETS = "allreduce_"
"""The operator that DDP calls from C++; a communication hook of the user may call others."""


@dataclass(slots=True)
class _Backward:
    """What DDP issued in one backward pass."""

    calls: list[tuple[CollectiveCall, Callable[[], bool]]] = field(default_factory=list)
    """Calls, each with a function that returns whether it is over."""
    over: list[bool] = field(default_factory=list)
    """For each call, whether it was over when DDP began to wait."""
    begin_ns: int = 0
    late: bool = False
    """True if the calls were issued inside the callback that also waits for them."""


class BackwardEnd:
    """Notes waits at the ends of backward passes."""

    def __init__(self, guard: Guard) -> None:
        self._running: dict[int, _Backward] = {}
        """By id of the graph task."""
        self._begins, self._ends = guard(self._on_begin), guard(self._on_end)

    def issued(self, call: CollectiveCall, operator: str, work: object, caller: FrameType | None) -> None:
        """Adds a call; does nothing unless DDP issued it during backward."""
        task = torch._C._current_graph_task_id()
        is_over = _done(call, work) if task != -1 and is_of_ddp(operator, caller) else None
        if is_over is None:
            return
        backward = self._running.get(task)
        if backward is None:
            backward = self._running[task] = _Backward(late=torch._C._current_autograd_node() is None)
            Variable._execution_engine.queue_callback(partial(self._begins, task))
        backward.calls.append((call, is_over))

    def forget(self) -> None:
        """Drops backward passes that ended with an error."""
        self._running.clear()

    def _on_begin(self, task: int) -> None:
        backward = self._running.get(task)
        if backward is None:
            return
        for call, _ in backward.calls:
            note_begin(call)
        issued_ns = max(call.returned_ns for call, _ in backward.calls)
        backward.begin_ns = issued_ns if backward.late else time.time_ns()
        backward.over = [not backward.late and is_over() for _, is_over in backward.calls]
        Variable._execution_engine.queue_callback(partial(self._ends, task))

    def _on_end(self, task: int) -> None:
        end_ns = time.time_ns()
        backward = self._running.pop(task, _Backward())
        for (call, is_over), was_over in zip(backward.calls, backward.over, strict=False):
            if was_over:
                note_wait(call, backward.begin_ns, backward.begin_ns)
            elif is_over():  # otherwise DDP continues in an outer backward pass
                note_wait(call, backward.begin_ns, end_ns, several=True)


def _done(call: CollectiveCall, work: Any) -> Callable[[], bool] | None:
    """Returns a function that tells whether a thread waiting for the call can continue; None if that is not known."""
    if call.on_device:
        return lambda: True  # a stream waits instead; asking may break a graph capture
    try:
        done: Callable[[], bool] = work.get_future().done  # Work.is_completed becomes true slightly later
    except (RuntimeError, NotImplementedError):
        return None
    return done


def is_of_ddp(operator: str, caller: FrameType | None) -> bool:
    """True if C++ made the call during backward, or a communication hook, recognised by its `GradBucket` argument."""
    if caller is None or caller.f_code is ENGINE:
        return operator == BUCKETS
    from torch._C._distributed_c10d import GradBucket  # missing if torch is built without it

    while caller is not None and caller.f_code is not ENGINE:
        if any(type(value) is GradBucket for value in list(caller.f_locals.values())):
            return True
        caller = caller.f_back
    return False
