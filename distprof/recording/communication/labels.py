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

from distprof.contract.collective_ops import OP_OF_C10D, POINT_TO_POINT, WITHOUT_DATA
from distprof.model.scopes import Frame, Guard, ModuleScopes, in_backward
from distprof.model.tensors import dtype_name, reaches_autograd
from distprof.own import time
from distprof.recording.communication.c10d import HOST, C10dKernels, RunningWorks, backend_name, unboxed
from distprof.recording.communication.collective_call import CollectiveCall, note_passed, note_wait
from distprof.recording.communication.waits import WaitWatch
from distprof.timing.stopwatch import StreamStopwatch, stopwatch

INPUTS = ("input_tensor", "input_tensors", "input_list", "inputs", "input", "tensors", "tensor")
"""Names of arguments of c10d operators that hold the tensors that this rank contributes."""
OUTPUTS = ("output_tensors", "output_lists")
WRITTEN = ("outputs", "output_tensor", "output", *OUTPUTS, "tensors")
PEERS = ("dst", "src", "root_rank")
BLOCKING = ("monitored_barrier_",)
"""Operators that return when the op is over."""
MANY_WORKS = ("reduce_scatter_", "reduce_scatter_tensor_coalesced_")
"""Operators that gloo splits into one piece of work per input."""
MOST_PENDING = 64
STOOD_STILL_NS = 20_000
"""Largest time in ns between two marks of a stream that had nothing to wait for."""
ON_HOST = ("gloo", "mpi")
"""Backends that also communicate data of devices, but do so on the host."""


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
        self._ends_from_timeline, self._numbered = False, True
        self._streams: StreamStopwatch | None = None
        self._reached = _Reached()
        """Per thread, the mark before the running call."""

    def start(self, *, timeline: bool = False, streams: StreamStopwatch | None = None,
              numbered: bool = True) -> None:
        """Installs a kernel in front of each operator.

        Args:
            numbered: Whether calls get the numbers that torch gives them in their groups, or our own.
            streams: Stopwatch that marks streams; by default a new one, whose creation waits for the device.
            timeline: Whether a timeline will show when ops ended. Callbacks hold up the backend's thread until the
                interpreter is free, so they are then only used if the timeline is ambiguous about which op an event
                belongs to.
        """
        self._ends_from_timeline, self._numbered = timeline, numbered
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
        op = OP_OF_C10D[operator]
        process_group: Any = dist.ProcessGroup.unbox(given["process_group"])
        group, ranks = process_group.group_name, self._ranks_of(process_group)
        frame = self._scopes.current
        step, phase = self._where()
        data = [] if op in WITHOUT_DATA else _flat(_first(given, INPUTS))
        elements = [tensor.numel() for tensor in data]
        sizes = [number * tensor.element_size() for number, tensor in zip(elements, data, strict=True)]
        peer, splits = _first(given, PEERS), given.get("input_split_sizes")
        works = elements if operator in MANY_WORKS else [sum(elements)]
        kind = (group, op in POINT_TO_POINT)
        first = data[0] if data else next(iter(_flat(_first(given, OUTPUTS))), None)
        device = HOST if first is None else first.device
        has_streams = device.type not in (HOST.type, "meta")
        on_stream = self._streams is not None and has_streams and len(ranks) > 1
        written = _flat(_first(given, WRITTEN))
        call = CollectiveCall(
            op=op,
            group=group,
            group_description=process_group.group_desc,
            group_ranks=ranks,
            sequence=self._counts[kind],
            group_sequence=_number_in(process_group, self._counts[kind]) if self._numbered else self._counts[kind],
            num_elements=sum(elements),
            size_bytes=sum(sizes),
            dtype=dtype_name(first.dtype) if first is not None else None,
            peer=ranks[peer] if peer is not None and 0 <= peer < len(ranks) else None,
            tag=given.get("tag"),
            split_bytes=_split_bytes(splits, data, sizes, len(ranks)) if op == "all_to_all" else None,
            asynchronous=bool(given.get("async_op", operator not in BLOCKING)),
            module_path=frame.site.path if frame is not None else None,
            phase=phase or _phase(frame),
            in_autograd=_in_autograd(frame, written) if phase is None and frame is not None else None,
            step=step,
            enqueue_ns=times[0],
            returned_ns=times[1],
            thread=threading.get_native_id(),
            work_elements=() if op in POINT_TO_POINT or operator in BLOCKING else tuple(works),
            on_device=has_streams and backend_name(process_group, device) not in ON_HOST,
            mark=self._streams.mark if on_stream and self._streams is not None else None,
            reached=self._reached.mark if on_stream else None,
        )
        self._counts[kind] += 1
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
        self._waits.issued(call, operator, work, written, caller)
        if work is not None and not call.on_device:
            # an NCCL future is done before the kernel is; asking may break a graph capture
            self._follow(call, work)

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
            if call.op == "recv" and call.peer is None:
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


def _first(given: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((given[name] for name in names if name in given), None)


def _flat(data: Any) -> list[torch.Tensor]:
    if isinstance(data, torch.Tensor):
        return [data]
    return [tensor for part in data or () for tensor in _flat(part)]


def _split_bytes(splits: Sequence[int] | None, data: list[torch.Tensor], sizes: list[int],
                 num_ranks: int) -> list[int] | None:
    """Returns the bytes sent to each rank of the group: by tensor, by rows of one tensor, or in equal parts."""
    if splits is None:
        return sizes if len(sizes) == num_ranks else None
    if splits:
        rows = data[0].shape[0] if data and data[0].dim() else 0
        return [sizes[0] * split // rows if rows else 0 for split in splits]
    return [sum(sizes) // num_ranks] * num_ranks


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
