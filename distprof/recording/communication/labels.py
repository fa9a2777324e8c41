"""Communication of the trace pass: every c10d op of this process comes in, one labelled row each goes out.

A kernel put in front of the c10d operators sees what DDP, FSDP, DTensor and functional collectives issue, not only
what the script calls. It is taken away when the pass ends.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from distprof.model.scopes import Frame, ModuleScopes, in_backward
from distprof.model.tensors import dtype_name

NAMES = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "allgather_": "all_gather",
    "_allgather_base_": "all_gather",
    "allgather_coalesced_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather",
    "reduce_scatter_": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all",
    "broadcast_": "broadcast",
    "reduce_": "reduce",
    "gather_": "gather",
    "scatter_": "scatter",
    "barrier": "barrier",
    "monitored_barrier_": "barrier",
    "send": "send",
    "recv_": "recv",
    "recv_any_source_": "recv",
}
"""c10d operator -> name of the collective."""

POINT_TO_POINT = ("send", "recv")
INPUTS = ("input_tensor", "input_tensors", "input_list", "inputs", "input", "tensors", "tensor")
"""What the operators call the tensors that a rank gives."""
PEERS = ("dst", "src", "root_rank")
BLOCKING = ("monitored_barrier_",)
"""Operators that return when the op is over."""
MANY_WORKS = ("reduce_scatter_", "reduce_scatter_tensor_coalesced_")
"""Operators that gloo takes apart: a piece of work per input."""
MOST_PENDING = 64


@dataclass(slots=True, kw_only=True)
class CollectiveCall:
    """One communication op on this rank; the fields up to `timed_by` are columns of collectives.parquet."""

    op: str
    group: str
    group_description: str
    group_ranks: list[int]
    sequence: int
    group_sequence: int
    num_elements: int
    size_bytes: int
    dtype: str | None
    peer: int | None
    tag: int | None
    split_bytes: list[int] | None
    asynchronous: bool
    module_path: str | None
    phase: str | None
    step: int
    enqueue_ns: int
    start_ns: int | None = None
    end_ns: int | None = None
    timed_by: str | None = None
    returned_ns: int = 0
    """When the operator had returned: the op is in the backend's queue, or over."""
    thread: int = 0
    """Native id of the thread that called."""
    runner: int | None = None
    """Native id of the backend's thread that did it, where a callback told."""
    stamp_ns: int | None = None
    """When that thread told: it goes on afterwards."""
    over_by_ns: int | None = None
    """When it was seen to be over."""
    work_elements: Sequence[int] = ()
    """Elements of each piece of work that gloo makes of the call; none for what blocks or is point-to-point."""
    on_device: bool = False
    """True where a kernel on a GPU does it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """What a label says of a process group."""

    this: weakref.ref[Any]
    name: str
    description: str
    ranks: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arguments:
    """Where an operator has its arguments: (index, name) of each, None where there is no such."""

    group: tuple[int, str]
    data: tuple[int, str] | None
    peer: tuple[int, str] | None
    tag: tuple[int, str] | None
    asynchronous: tuple[int, str] | None
    splits: tuple[int, str] | None
    outputs: tuple[int, str] | None

    @classmethod
    def of(cls, overload: Any) -> _Arguments:
        """Looks the names up in the schema, once."""
        places = {argument.name: (index, argument.name) for index, argument in enumerate(overload._schema.arguments)}

        def first(*names: str) -> tuple[int, str] | None:
            return next((places[name] for name in names if name in places), None)

        return cls(group=places["process_group"], data=first(*INPUTS), peer=first(*PEERS), tag=first("tag"),
                   asynchronous=first("async_op"), splits=first("input_split_sizes"),
                   outputs=first("output_tensors", "output_lists"))


Pending = tuple[CollectiveCall, Any]


class CollectiveRecorder:
    """Listens to the c10d operators while it is on."""

    def __init__(self, scopes: ModuleScopes, where: Callable[[], tuple[int, str | None]],
                 guard: Callable[[Callable[..., None]], Callable[..., None]]) -> None:
        self.calls: list[CollectiveCall] = []
        self._scopes = scopes
        self._where = where
        self._before = guard(self._look_at_pending)
        self._label = guard(self._on_call)
        self._counts: dict[tuple[str, bool], int] = defaultdict(int)
        self._groups: dict[str, _Group] = {}
        self._runners: dict[str, set[int]] = defaultdict(set)
        self._pending: list[Pending] = []
        self._waited_for: dict[int, CollectiveCall] = {}
        self._ends_from_timeline = False
        self._library: Any = None

    def start(self, *, timeline: bool = False) -> None:
        """Puts a kernel in front of each operator.

        Args:
            timeline: A timeline will tell when each op ended, so that callbacks are needed only to tell apart what
                it leaves open: they hold up the backend's thread until the interpreter is free.
        """
        self._ends_from_timeline = timeline
        self._library = torch.library.Library("c10d", "IMPL")
        for operator in NAMES:
            overload = getattr(torch.ops.c10d, operator).default
            self._library.impl(overload, self._kernel(overload), "BackendSelect", with_keyset=True)

    def stop(self) -> None:
        """Takes the kernels away; what still runs is stamped when it ends."""
        if self._library is not None:
            self._library._destroy()
            self._library = None
            self._look_at_pending()
            self._has_waited(threading.get_native_id(), time.time_ns())
            for call, work in self._pending:
                if call.runner is None and call.op not in POINT_TO_POINT:
                    self._stamp_end(call, work)
            self._pending = []

    def open_calls(self) -> list[CollectiveCall]:
        """Calls that have not ended, as far as that is known: those on CPU tensors."""
        return [call for call, work in list(self._pending) if call.end_ns is None and not work.is_completed()]

    def _kernel(self, overload: Any) -> Callable[..., Any]:
        after = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
        arguments = _Arguments.of(overload)
        operator = overload._schema.name.removeprefix("c10d::")

        def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
            self._before()
            enqueue_ns = time.time_ns()
            output = overload.redispatch(keys & after, *args, **kwargs)
            self._label(operator, arguments, (enqueue_ns, time.time_ns()), args, kwargs, output)
            return output

        return kernel

    def _on_call(self, operator: str, arguments: _Arguments, times: tuple[int, int], args: Sequence[Any],
                 kwargs: dict[str, Any], output: Any) -> None:
        def given(place: tuple[int, str] | None, default: Any = None) -> Any:
            if place is None:
                return default
            return args[place[0]] if place[0] < len(args) else kwargs.get(place[1], default)

        op = NAMES[operator]
        process_group: Any = dist.ProcessGroup.unbox(given(arguments.group))
        group = self._group(process_group)
        frame = self._scopes.current
        step, phase = self._where()
        data = [] if op == "barrier" else _flat(given(arguments.data))
        elements = [tensor.numel() for tensor in data]
        sizes = [number * tensor.element_size() for number, tensor in zip(elements, data, strict=True)]
        peer = given(arguments.peer)
        kind = (group.name, op in POINT_TO_POINT)
        first = data[0] if data else next(iter(_flat(given(arguments.outputs))), None)
        call = CollectiveCall(
            op=op,
            group=group.name,
            group_description=group.description,
            group_ranks=group.ranks,
            sequence=self._counts[kind],
            group_sequence=process_group._get_sequence_number_for_group(),
            num_elements=sum(elements),
            size_bytes=sum(sizes),
            dtype=dtype_name(first.dtype) if first is not None else None,
            peer=group.ranks[peer] if peer is not None and 0 <= peer < len(group.ranks) else None,
            tag=given(arguments.tag),
            split_bytes=_split_bytes(given(arguments.splits), data, sizes, group) if op == "all_to_all" else None,
            asynchronous=bool(given(arguments.asynchronous, operator not in BLOCKING)),
            module_path=frame.site.path if frame is not None else None,
            phase=phase or _phase(frame),
            step=step,
            enqueue_ns=times[0],
            returned_ns=times[1],
            thread=threading.get_native_id(),
            work_elements=() if op in POINT_TO_POINT or operator in BLOCKING else _works(operator, elements),
            on_device=first is not None and first.is_cuda,
        )
        self._counts[kind] += 1
        self.calls.append(call)
        self._has_waited(call.thread, call.enqueue_ns)
        if not call.asynchronous:
            self._waited_for[call.thread] = call
        if operator in BLOCKING:
            call.end_ns, call.timed_by = call.returned_ns, "future"
        elif not call.on_device:  # an NCCL future is done before the kernel is; to ask may break a graph capture
            self._follow(call, output[-1] if isinstance(output, tuple) else output)

    def _group(self, process_group: Any) -> _Group:
        name = process_group.group_name
        known = self._groups.get(name)
        if known is None or known.this() is not process_group:
            known = self._groups[name] = _Group(
                this=weakref.ref(process_group), name=name, description=process_group.group_desc,
                ranks=dist.get_process_group_ranks(process_group))
        return known

    def _follow(self, call: CollectiveCall, boxed: Any) -> None:
        try:
            work: Any = dist.Work.unbox(boxed)
        except (RuntimeError, TypeError):
            return  # ops that a backend gathers up return no work
        if self._needs_callback(call):
            self._stamp_end(call, work)
        # the work of a reduce_scatter of gloo never says that it is over
        if call.op != "reduce_scatter" and len(self._pending) < MOST_PENDING:
            self._pending.append((call, work))

    def _needs_callback(self, call: CollectiveCall) -> bool:
        if call.op in POINT_TO_POINT:
            return False  # gloo gives no future for these
        if not self._ends_from_timeline or len(self._runners[call.group]) < 2:
            return True  # every group of gloo has two threads: from then on the timeline tells whose they are
        # the timeline does not tell like ops apart that two threads may begin in any order
        return any(other.group == call.group and other.op == call.op and other.work_elements == call.work_elements
                   for other, _ in self._pending)

    def _has_waited(self, thread: int, now_ns: int) -> None:
        before = self._waited_for.pop(thread, None)
        if before is not None:
            before.over_by_ns = now_ns

    def _look_at_pending(self) -> None:
        """Lets go of what is over: a work keeps its tensors alive."""
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

        def done(_future: Any) -> None:
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


def _flat(data: Any) -> list[torch.Tensor]:
    if isinstance(data, torch.Tensor):
        return [data]
    return [tensor for part in data or () for tensor in _flat(part)]


def _works(operator: str, elements: list[int]) -> Sequence[int]:
    return tuple(elements) if operator in MANY_WORKS else (sum(elements),)


def _split_bytes(splits: Sequence[int] | None, data: list[torch.Tensor], sizes: list[int], group: _Group) -> (
        list[int] | None):
    """Bytes to each rank of the group: by its own tensor, by rows of one tensor, or in equal parts."""
    if splits is None:
        return sizes if len(sizes) == len(group.ranks) else None
    if splits:
        rows = data[0].shape[0] if data and data[0].dim() else 0
        return [sizes[0] * split // rows if rows else 0 for split in splits]
    return [sum(sizes) // len(group.ranks)] * len(group.ranks)


def _source(call: CollectiveCall, work: Any) -> int | None:
    try:
        return call.group_ranks[int(work._source_rank())]
    except (RuntimeError, IndexError):
        return None


def _phase(frame: Frame | None) -> str | None:
    if frame is not None:
        return "recompute" if frame.recompute else "forward"
    return "backward" if in_backward() else None
