"""Communication of the trace pass: every c10d op of this process comes in, one labelled row each goes out.

A kernel put in front of the c10d operators sees what DDP, FSDP, DTensor and functional collectives issue, not only
what the script calls. It is taken away when the pass ends.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from distprof.scopes import Frame, ModuleScopes, in_backward
from distprof.tensors import dtype_name, tensors

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
    "send": "send",
    "recv_": "recv",
    "recv_any_source_": "recv",
}
"""c10d operator -> name of the collective."""

POINT_TO_POINT = ("send", "recv")
INPUTS = ("input_tensor", "input_tensors", "input_list", "inputs", "input", "tensors", "tensor")
"""What the operators call the tensors that a rank gives."""


@dataclass(slots=True)
class CollectiveCall:
    """One communication op on this rank; the fields are columns of collectives.parquet."""

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
    start_ns: int | None = field(default=None)
    end_ns: int | None = field(default=None)
    timed_by: str | None = field(default=None)


class CollectiveRecorder:
    """Listens to the c10d operators while it is on."""

    def __init__(self, scopes: ModuleScopes, where: Callable[[], tuple[int, str | None]],
                 guard: Callable[[Callable[..., None]], Callable[..., None]]) -> None:
        self.calls: list[CollectiveCall] = []
        self._scopes = scopes
        self._where = where
        self._label = guard(self._on_call)
        self._counts: dict[tuple[str, bool], int] = defaultdict(int)
        self._library: Any = None

    def start(self) -> None:
        """Puts a kernel in front of each operator."""
        self._library = torch.library.Library("c10d", "IMPL")
        for operator in NAMES:
            overload = getattr(torch.ops.c10d, operator).default
            self._library.impl(overload, self._kernel(overload), "BackendSelect", with_keyset=True)

    def stop(self) -> None:
        """Takes the kernels away."""
        if self._library is not None:
            self._library._destroy()
            self._library = None

    def _kernel(self, overload: Any) -> Callable[..., Any]:
        after = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
        names = [argument.name for argument in overload._schema.arguments]
        op = NAMES[overload._schema.name.removeprefix("c10d::")]

        def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
            enqueue_ns = time.time_ns()
            output = overload.redispatch(keys & after, *args, **kwargs)
            self._label(op, enqueue_ns, dict(zip(names, args, strict=False)) | kwargs, output)
            return output

        return kernel

    def _on_call(self, op: str, enqueue_ns: int, given: dict[str, Any], output: Any) -> None:
        group: Any = dist.ProcessGroup.unbox(given["process_group"])
        frame = self._scopes.current
        step, phase = self._where()
        data = tensors(next((given[name] for name in INPUTS if name in given), None))
        call = CollectiveCall(
            op=op,
            group=group.group_name,
            group_description=group.group_desc,
            group_ranks=dist.get_process_group_ranks(group),
            sequence=self._next(group.group_name, op),
            group_sequence=group._get_sequence_number_for_group(),
            num_elements=0 if op == "barrier" else sum(tensor.numel() for tensor in data),
            size_bytes=0 if op == "barrier" else sum(tensor.numel() * tensor.element_size() for tensor in data),
            dtype=dtype_name(data[0].dtype) if data and op != "barrier" else None,
            peer=_peer(given, group),
            tag=given.get("tag"),
            split_bytes=None,
            asynchronous=bool(given.get("async_op", True)),
            module_path=frame.site.path if frame is not None else None,
            phase=phase or _phase(frame),
            step=step,
            enqueue_ns=enqueue_ns,
        )
        self.calls.append(call)
        if op not in POINT_TO_POINT and not (data and data[0].is_cuda):
            # gloo gives no future for point-to-point; an NCCL future is done before the kernel is
            _stamp_end(call, output[-1] if isinstance(output, tuple) else output)

    def _next(self, group: str, op: str) -> int:
        key = (group, op in POINT_TO_POINT)
        self._counts[key] += 1
        return self._counts[key] - 1


def _phase(frame: Frame | None) -> str | None:
    if frame is not None:
        return "recompute" if frame.recompute else "forward"
    return "backward" if in_backward() else None


def _peer(given: dict[str, Any], group: Any) -> int | None:
    in_group = next((given[name] for name in ("dst", "src", "root_rank") if name in given), None)
    return None if in_group is None else dist.get_global_rank(group, in_group)


def _stamp_end(call: CollectiveCall, work: Any) -> None:
    def done(_future: Any) -> None:
        call.end_ns, call.timed_by = time.time_ns(), "future"

    try:
        dist.Work.unbox(work).get_future().then(done)
    except (RuntimeError, NotImplementedError):
        return  # some works of gloo have no future: their end stays unknown
