"""Labels every communication op of this process: what it was, in which group, for which module, when it was called.

Kernels in front of the c10d operators are removed when the pass ends.
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
"""Names that c10d operators give to the tensors that a rank puts in."""
OUTPUTS = ("output_tensors", "output_lists")
WRITTEN = ("outputs", "output_tensor", "output", *OUTPUTS, "tensors")
PEERS = ("dst", "src", "root_rank")
BLOCKING = ("monitored_barrier_",)
"""Operators that return when the op is over."""
MANY_WORKS = ("reduce_scatter_", "reduce_scatter_tensor_coalesced_")
"""Operators that gloo takes apart: a piece of work per input."""
MOST_PENDING = 64
STOOD_STILL_NS = 20_000
"""A stream takes less from one mark to the next where it has nothing to wait for."""
ON_HOST = ("gloo", "mpi")
"""Backends that communicate data of devices as well, on the host."""


Pending = tuple[CollectiveCall, Any]


class _Reached(threading.local):
    mark: Any = None


class CollectiveRecorder:
    """Listens to the c10d operators between `start` and `stop`."""

    def __init__(self, scopes: ModuleScopes, where: Callable[[], tuple[int, str | None]], works: RunningWorks,
                 guard: Guard) -> None:
        self.calls: list[CollectiveCall] = []
        self.device_clock_ns = 0
        """By how much times of the device may be wrong, at most."""
        self._scopes = scopes
        self._where = where
        self._works = works
        self._kernels = C10dKernels(guard(self._before_call), guard(self._on_call))
        self._waits = WaitWatch(guard, self.calls)
        self._counts: dict[tuple[str, bool], int] = defaultdict(int)
        self._groups: dict[str, tuple[weakref.ref[Any], list[int]]] = {}
        """By name: the group and its ranks."""
        self._runners: dict[str, set[int]] = defaultdict(set)
        self._pending: list[Pending] = []
        self._waited_for: dict[int, CollectiveCall] = {}
        self._ends_from_timeline, self._numbered = False, True
        self._streams: StreamStopwatch | None = None
        self._reached = _Reached()
        """The mark in front of the running call, on each thread."""

    def start(self, *, timeline: bool = False, streams: StreamStopwatch | None = None,
              numbered: bool = True) -> None:
        """Puts a kernel in front of each operator.

        Args:
            numbered: Calls get the numbers that torch gives them in their groups; else our own.
            streams: What marks streams; by default a stopwatch of its own, which waits for the device.
            timeline: A timeline will show when ops ended. Callbacks hold up the backend's thread until the interpreter
                is free, so they are only used where the timeline leaves open which op an event belongs to.
        """
        self._ends_from_timeline, self._numbered = timeline, numbered
        watch = streams or stopwatch()
        self._streams = watch if isinstance(watch, StreamStopwatch) else None
        self._kernels.start()
        self._waits.start()

    def stop(self, *, settles: bool = True) -> None:
        """Removes the kernels; an op that still runs gets its end from a callback.

        Args:
            settles: Marks on streams become times, for which the device is waited for; else they stay, for `resolve`.
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
        """Drops all calls, and numbers the next ones from 0."""
        self.calls.clear()
        self._counts.clear()

    def open_calls(self) -> list[CollectiveCall]:
        """Calls that have not ended, as far as that is known: those on CPU tensors."""
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
            given: Its arguments by name, without those left at their default.
            times: When it was called and when it returned.
            output: What it returned.
            caller: The Python frame in which it was called.
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
            # an NCCL future is done before the kernel is; to ask may break a graph capture
            self._follow(call, work)

    def _ranks_of(self, group: Any) -> list[int]:
        known = self._groups.get(group.group_name)
        if known is None or known[0]() is not group:
            known = self._groups[group.group_name] = weakref.ref(group), dist.get_process_group_ranks(group)
        return known[1]

    def _follow(self, call: CollectiveCall, work: object) -> None:
        if self._needs_callback(call):
            self._stamp_end(call, work)
        # the work of a reduce_scatter of gloo never completes
        if call.op != "reduce_scatter" and len(self._pending) < MOST_PENDING:
            self._pending.append((call, work))

    def _needs_callback(self, call: CollectiveCall) -> bool:
        if call.op in POINT_TO_POINT:
            return False  # gloo gives no future for these
        if not self._ends_from_timeline or len(self._runners[call.group]) < 2:
            return True  # gloo has two threads a group: once both are known, the timeline shows whose work it is
        # the timeline cannot tell apart equal ops that two threads may begin in any order
        return any(other.group == call.group and other.op == call.op and other.work_elements == call.work_elements
                   for other, _ in self._pending)

    def _has_waited(self, thread: int, now_ns: int) -> None:
        before = self._waited_for.pop(thread, None)
        if before is not None:
            before.over_by_ns = now_ns

    def _look_at_pending(self) -> None:
        """Drops works that are over: a work keeps its tensors alive."""
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
                if runner != attaching:  # else it was over already
                    call.runner, call.stamp_ns = runner, call.end_ns
                    self._runners[call.group].add(runner)

        try:
            work.get_future().then(done)
        except (RuntimeError, NotImplementedError):
            return  # some works of gloo have no future


def resolve(call: CollectiveCall, streams: StreamStopwatch) -> None:
    """Turns the marks of a call into times, by the stopwatch that made them."""
    if call.reached is not None:
        call.reached_ns = streams.resolve(call.reached)
    if call.passed is not None:
        passed_ns = streams.resolve(call.passed)
        call.passed_ns = passed_ns if passed_ns - streams.resolve(call.waited) > STOOD_STILL_NS else None


def _number_in(group: Any, counted: int) -> int:
    """The number that torch gives a call in its group; that of our own where the backend numbers none, as MPI."""
    try:
        return int(group._get_sequence_number_for_group())
    except RuntimeError:
        return counted


def _is_gathered(group: object) -> bool:
    """True where calls are gathered up, to be made together later."""
    return group in getattr(dist.distributed_c10d._world, "pg_coalesce_state", ())


def _first(given: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((given[name] for name in names if name in given), None)


def _flat(data: Any) -> list[torch.Tensor]:
    if isinstance(data, torch.Tensor):
        return [data]
    return [tensor for part in data or () for tensor in _flat(part)]


def _split_bytes(splits: Sequence[int] | None, data: list[torch.Tensor], sizes: list[int],
                 num_ranks: int) -> list[int] | None:
    """Bytes to each rank of the group: by its own tensor, by rows of one tensor, or in equal parts."""
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
    """As in `COLLECTIVES`: only a forward call with gradients shows it."""
    return reaches_autograd(written) if frame.learns and not frame.recompute else None


def _phase(frame: Frame | None) -> str | None:
    if frame is not None:
        return frame.phase
    return "backward" if in_backward() else None
