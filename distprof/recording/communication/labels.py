"""Labels every communication op of this process: which op, in which group, for which module, when it was issued.

It uses kernels in front of the c10d operators, which are removed when the pass ends.
"""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from distprof.contract.collective_ops import OP_OF_C10D, POINT_TO_POINT
from distprof.model.scopes import Frame, Guard, ModuleScopes, in_backward
from distprof.model.tensors import reaches_autograd
from distprof.own import time
from distprof.recording.communication.c10d import HOST, C10dKernels, RunningWorks, backend_name, unboxed
from distprof.recording.communication.call_data import BLOCKING, data_fields, device_of_data, written
from distprof.recording.communication.collective_call import CollectiveCall, note_passed, note_wait
from distprof.recording.communication.waits import WaitWatch
from distprof.timing.stopwatch import StreamStopwatch, stopwatch

MOST_PENDING = 64
STOOD_STILL_NS = 20_000
"""Largest time in ns between two marks of a stream that had nothing to wait for."""
ON_HOST = ("gloo", "mpi")
"""Backends that also communicate data of devices, but do so on the host."""
UNDESCRIBED: dict[str, Any] = {
    "group_description": "", "sequence": 0, "group_sequence": 0, "num_elements": 0, "size_bytes": 0, "dtype": None,
    "peer": None, "tag": None, "split_bytes": None, "module_path": None, "phase": None, "step": 0}
"""Values of a call of which only group, op and times are known."""


Pending = tuple[CollectiveCall, Any]


class _Reached(threading.local):
    mark: Any = None


class CollectiveRecorder:
    """Labels calls of the c10d operators between `start` and `stop`."""

    def __init__(self, scopes: ModuleScopes, where: Callable[[], tuple[int, str | None]], works: RunningWorks,
                 guard: Guard) -> None:
        self.calls: list[CollectiveCall] = []
        self.device_clock_ns = 0
        """Upper bound of the error of device times."""
        self._scopes = scopes
        self._where = where
        self._works = works
        self._kernels = C10dKernels(guard(self._before_call), guard(self._on_call))
        self._waits = WaitWatch(guard, self.calls)
        self._counts: dict[tuple[str, bool], int] = defaultdict(int)
        self._groups: dict[str, tuple[weakref.ref[Any], list[int]]] = {}
        """Group name -> the group and its ranks."""
        self._runners: dict[str, set[int]] = defaultdict(set)
        self._pending: list[Pending] = []
        self._waited_for: dict[int, CollectiveCall] = {}
        self._ends_from_timeline, self._describes = False, True
        self._streams: StreamStopwatch | None = None
        self._reached = _Reached()
        """Per thread, the mark before the running call."""

    def start(self, *, timeline: bool = False, streams: StreamStopwatch | None = None,
              describes: bool = True) -> None:
        """Installs a kernel in front of each operator.

        Args:
            describes: Whether calls get a number, a module and what is known of their data, besides group and times.
            streams: Stopwatch that marks streams; by default a new one, whose creation waits for the device.
            timeline: Whether a timeline will show when ops ended. Callbacks hold up the backend's thread until the
                interpreter is free, so they are then only used if the timeline is ambiguous about which op an event
                belongs to.
        """
        self._ends_from_timeline, self._describes = timeline, describes
        watch = streams or stopwatch()
        self._streams = watch if isinstance(watch, StreamStopwatch) else None
        self._kernels.start()
        self._waits.start()

    def stop(self, *, settles: bool = True) -> None:
        """Removes the kernels; ops that still run get their end from a callback.

        Args:
            settles: Whether marks on streams become times, which waits for the device; otherwise they stay, for
                `resolve`.
        """
        if self._kernels.stop():
            self._waits.stop()
            self._look_at_pending()
            self._has_waited(threading.get_native_id(), time.time_ns())
            for call, work in self._pending:
                if call.runner is None and call.op not in POINT_TO_POINT:
                    self._stamp_end(call, work)
            self._pending = []
            if settles:
                self._resolve_marks()
            self._streams = None
            self._reached = _Reached()

    def forget(self) -> None:
        """Drops all calls, and numbers later ones from 0."""
        self.calls.clear()
        self._counts.clear()

    @property
    def own_ns(self) -> int:
        """Time spent in labelling so far, without what the dispatcher needs to call it."""
        return self._kernels.own_ns

    def open_calls(self) -> list[CollectiveCall]:
        """Returns calls that have not ended, as far as that is known: only those on CPU tensors."""
        return [call for call, work in list(self._pending) if call.end_ns is None and not work.is_completed()]

    def _before_call(self) -> None:
        self._look_at_pending()
        if self._streams is not None:
            self._reached.mark = self._streams.mark()

    def _resolve_marks(self) -> None:
        """Turns marks on streams into times."""
        streams, self._streams = self._streams, None
        marked = [call for call in self.calls if call.mark is not None]
        with suppress(RuntimeError):  # the device hangs or has failed: what is known by then stays
            if streams is not None and marked:
                streams.settle(every_stream=False)
                self.device_clock_ns = max(self.device_clock_ns, streams.uncertainty_ns)
                for call in marked:
                    resolve(call, streams)
        for call in marked:
            call.mark = call.reached = call.waited = call.passed = None

    def _on_call(self, operator: str, given: Mapping[str, Any], times: tuple[int, int], output: object,
                 caller: FrameType | None) -> None:
        """Labels a call.

        Args:
            operator: Name of the c10d operator.
            given: Arguments by name, without those left at their default.
            times: When it was called and when it returned, in ns.
            output: What the operator returned.
            caller: The Python frame that called it.
        """
        process_group: Any = dist.ProcessGroup.unbox(given["process_group"])
        op, ranks = OP_OF_C10D[operator], self._ranks_of(process_group)
        device = device_of_data(operator, given) or HOST
        has_streams = device.type not in (HOST.type, "meta")
        on_stream = self._streams is not None and has_streams and len(ranks) > 1
        call = CollectiveCall(
            op=op,
            group=process_group.group_name,
            group_ranks=ranks,
            asynchronous=bool(given.get("async_op", operator not in BLOCKING)),
            enqueue_ns=times[0],
            returned_ns=times[1],
            thread=threading.get_native_id(),
            on_device=has_streams and backend_name(process_group, device) not in ON_HOST,
            mark=self._streams.mark if on_stream and self._streams is not None else None,
            reached=self._reached.mark if on_stream else None,
            **(self._description(operator, given, process_group) if self._describes else UNDESCRIBED),
        )
        self.calls.append(call)
        self._has_waited(call.thread, call.enqueue_ns)
        if not call.asynchronous:
            self._waited_for[call.thread] = call
        if operator in BLOCKING:
            call.end_ns, call.timed_by = call.returned_ns, "future"
            note_wait(call, *times)
            return
        work = unboxed(output)
        if work is None and not call.asynchronous and not _is_gathered(process_group):
            note_passed(call)
        self._works.add(op, process_group, work, device)
        self._waits.issued(call, operator, work, written(given), caller)
        if work is not None and not call.on_device:
            # an NCCL future is done before the kernel is; asking may break a graph capture
            self._follow(call, work)

    def _description(self, operator: str, given: Mapping[str, Any], group: Any) -> dict[str, Any]:
        """Returns what a sampled step does not need to know of a call."""
        frame = self._scopes.current
        step, phase = self._where()
        kind = (group.group_name, OP_OF_C10D[operator] in POINT_TO_POINT)
        sequence = self._counts[kind]
        self._counts[kind] += 1
        return {
            "group_description": group.group_desc,
            "sequence": sequence,
            "group_sequence": _number_in(group, sequence),
            "module_path": frame.site.path if frame is not None else None,
            "phase": phase or _phase(frame),
            "in_autograd": _in_autograd(frame, written(given)) if phase is None and frame is not None else None,
            "step": step,
            **data_fields(operator, given, self._ranks_of(group)),
        }

    def _ranks_of(self, group: Any) -> list[int]:
        known = self._groups.get(group.group_name)
        if known is None or known[0]() is not group:
            known = self._groups[group.group_name] = weakref.ref(group), dist.get_process_group_ranks(group)
        return known[1]

    def _follow(self, call: CollectiveCall, work: object) -> None:
        if self._needs_callback(call):
            self._stamp_end(call, work)
        # gloo's work of a reduce_scatter never completes
        if call.op != "reduce_scatter" and len(self._pending) < MOST_PENDING:
            self._pending.append((call, work))

    def _needs_callback(self, call: CollectiveCall) -> bool:
        if call.op in POINT_TO_POINT:
            return False  # gloo has no future for these
        if not self._ends_from_timeline or len(self._runners[call.group]) < 2:
            return True  # gloo has two threads per group; once both are known, the timeline is enough
        # the timeline cannot distinguish equal ops that two threads may start in any order
        return any(other.group == call.group and other.op == call.op and other.work_elements == call.work_elements
                   for other, _ in self._pending)

    def _has_waited(self, thread: int, now_ns: int) -> None:
        before = self._waited_for.pop(thread, None)
        if before is not None:
            before.over_by_ns = now_ns

    def _look_at_pending(self) -> None:
        """Drops works that are over, since a work keeps its tensors alive."""
        kept = []
        for call, work in self._pending:
            if not work.is_completed():
                kept.append((call, work))
                continue
            call.over_by_ns = call.over_by_ns or time.time_ns()
            if call.op == "recv" and call.peer is None and self._describes:
                call.peer = _source(call, work)
        self._pending = kept

    def _stamp_end(self, call: CollectiveCall, work: Any) -> None:
        attaching = threading.get_native_id()

        def done(_future: object) -> None:
            if call.end_ns is None:
                call.end_ns, call.timed_by = time.time_ns(), "future"
                runner = threading.get_native_id()
                if runner != attaching:  # otherwise the op was over already
                    call.runner, call.stamp_ns = runner, call.end_ns
                    self._runners[call.group].add(runner)

        try:
            work.get_future().then(done)
        except (RuntimeError, NotImplementedError):
            return  # some works of gloo have no future


def resolve(call: CollectiveCall, streams: StreamStopwatch) -> None:
    """Turns the marks of a call into times, with the stopwatch that recorded them."""
    if call.reached is not None:
        call.reached_ns = streams.resolve(call.reached)
    if call.passed is not None:
        passed_ns = streams.resolve(call.passed)
        call.passed_ns = passed_ns if passed_ns - streams.resolve(call.waited) > STOOD_STILL_NS else None


def _number_in(group: Any, counted: int) -> int:
    """Returns torch's sequence number of a call in its group; our own if the backend has none, such as MPI."""
    try:
        return int(group._get_sequence_number_for_group())
    except RuntimeError:
        return counted


def _is_gathered(group: object) -> bool:
    """True if calls are being coalesced, to be issued together later."""
    return group in getattr(dist.distributed_c10d._world, "pg_coalesce_state", ())


def _source(call: CollectiveCall, work: Any) -> int | None:
    try:
        return call.group_ranks[int(work._source_rank())]
    except (RuntimeError, IndexError):
        return None


def _in_autograd(frame: Frame, written: Sequence[torch.Tensor]) -> bool | None:
    """Returns the value of the column of `COLLECTIVES`; only forward calls with gradients show it."""
    return reaches_autograd(written) if frame.learns and not frame.recompute else None


def _phase(frame: Frame | None) -> str | None:
    if frame is not None:
        return frame.phase
    return "backward" if in_backward() else None
