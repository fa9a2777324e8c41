"""Records every operator of a call with its tensors and times, as in MegEngine's profile of a graph."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type

from distprof import formulas
from distprof.compat.megengine.analysis.profile import dtype_of, type_of
from distprof.model.modules import ModuleMap
from distprof.model.scopes import Frame, ModuleScopes, in_backward
from distprof.model.tensors import dtype_name, tensors
from distprof.shape_formulas.operator_call import Cost
from distprof.terminal import say

NOT_WORK = ("prim::", "profiler::")
PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call of an operator."""

    name: str
    operator: str
    inputs: Sequence[int]
    """Indices of variables."""
    outputs: Sequence[int]
    in_shapes: Sequence[list[int]]
    out_shapes: Sequence[list[int]]
    in_layouts: Sequence[list[int] | None]
    """Strides of inputs; None if contiguous."""
    param: dict[str, Any]
    cost: Cost
    thread: int
    start_ns: int
    end_ns: int
    device: str
    events: tuple[Any, Any] | None
    """CUDA events before and after the call; None if there are none."""


class OperatorLog(TorchDispatchMode):
    """Records the operators that run while it is on, named after the running modules."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []
        self.variables: list[dict[str, Any]] = []
        """Descriptions of variables, by index."""
        self.error: Exception | None = None
        """Why operators are missing; None if none are."""
        self._numbers: dict[Any, int] = {}
        self._scopes = ModuleScopes(ModuleMap(), lambda function: function, lambda _: None)
        self._lock = threading.Lock()

    def enter(self, frame: Frame) -> None:
        """Does nothing: module calls only show where the script is."""

    def exit(self, frame: Frame, args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> None:
        """Does nothing."""

    def __enter__(self) -> Any:
        self._scopes.add(self)
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> Any:
        try:
            return super().__exit__(*error)  # type: ignore[no-untyped-call]
        finally:
            self._scopes.remove(self)

    def __torch_dispatch__(self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if any(is_traceable_wrapper_subclass_type(kind) for kind in types):
            return NotImplemented  # the tensor unwraps itself; this mode then gets its parts
        name = formulas.name_of(func)
        if name.startswith(NOT_WORK):
            return func(*args, **kwargs)
        inputs = tensors((args, kwargs))
        layouts, shapes = [_strides(one) for one in inputs], [list(one.shape) for one in inputs]
        device = str(inputs[0].device) if inputs else "cpu"
        events = _cuda_events(device)
        start_ns = time.perf_counter_ns()
        output = func(*args, **kwargs)
        end_ns = time.perf_counter_ns()
        if events is not None:
            events[1].record()
        try:
            self._note(func, args, kwargs, output, inputs=inputs, in_shapes=shapes, in_layouts=layouts, device=device,
                       events=events, start_ns=start_ns, end_ns=end_ns)
        except Exception as error:  # noqa: BLE001 (the script goes on)
            if self.error is None:
                say(f"operators are missing from the profile, the first is {name}: {error}")
            self.error = error
        return output

    def _note(self, func: object, args: tuple[Any, ...], kwargs: dict[str, Any], output: object, *,
              inputs: list[torch.Tensor], device: str, **known: Any) -> None:
        found, name = tensors(output), formulas.name_of(func)
        cost = formulas.cost(func, args, kwargs, output)
        with self._lock:
            self.calls.append(Call(
                name=self._place(name), operator=name, inputs=[self._number(one) for one in inputs],
                outputs=[self._number(one, new=True) for one in found], out_shapes=[list(one.shape) for one in found],
                param=_param(func, args, kwargs), cost=cost, thread=threading.get_ident(),
                device=device if inputs or not found else str(found[0].device), **known))

    def _place(self, name: str) -> str:
        frame = self._scopes.current
        where = (frame.site.path or frame.site.class_name) if frame is not None else "backward" if in_backward() else ""
        return f"{where}/{name}[{len(self.calls)}]" if where else f"{name}[{len(self.calls)}]"

    def _number(self, tensor: torch.Tensor, *, new: bool = False) -> int:
        key = _identity(tensor)
        number = None if new else self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.variables)
            dtype = dtype_name(tensor.dtype)
            self.variables.append({"id": str(number), "mem_plan": {"layout": {
                "dtype": dtype_of(dtype) or dtype, "shape": list(tensor.shape)}}})
        return number


def graph_of(log: OperatorLog) -> dict[str, Any]:
    """Returns operators and variables, as in `graph_exec` of a profile."""
    return {"operator": {str(number): {
        "name": call.name, "type": type_of(call.operator), "id": str(number), "input": list(map(str, call.inputs)),
        "output": list(map(str, call.outputs))} for number, call in enumerate(log.calls)},
        "var": {variable["id"]: variable for variable in log.variables}}


def footprints_of(log: OperatorLog) -> dict[str, Any]:
    """Returns FLOPs (0: unknown), bytes, shapes and arguments of each operator."""
    found = dict[str, Any]()
    for number, call in enumerate(log.calls):
        found[str(number)] = {
            "computation": call.cost.flops, "memory": call.cost.io_bytes, "in_shapes": list(call.in_shapes),
            "out_shapes": list(call.out_shapes), "param": call.param,
            **({"in_layouts": list(call.in_layouts)} if any(call.in_layouts) else {})}
    return found


def _identity(tensor: torch.Tensor) -> Any:
    """Returns the storage of a tensor, and its place there: backward sees a saved tensor as another object. Reused
    memory gets a new index, because an operator has written it.
    """
    try:
        return (tensor.untyped_storage()._cdata, tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
    except (NotImplementedError, RuntimeError):  # sparse, nested
        return id(tensor)


def _strides(tensor: torch.Tensor) -> list[int] | None:
    return None if tensor.layout is not torch.strided or tensor.is_contiguous() else list(tensor.stride())


def _cuda_events(device: str) -> tuple[Any, Any] | None:
    # events belong to the current device, and cannot be recorded while a graph is captured
    if not device.startswith("cuda") or torch.device(device).index != torch.cuda.current_device():
        return None
    if torch.cuda.is_current_stream_capturing():
        return None
    before, behind = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    return before, behind


def _param(func: object, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    schema = getattr(func, "_schema", None)
    names = [one.name for one in schema.arguments] if schema is not None else [str(one) for one in range(len(args))]
    given = dict(zip(names, args, strict=False)) | kwargs
    return {name: value for name, value in given.items() if value is not None and _is_plain(value)}


def _is_plain(value: object) -> bool:
    return type(value) in PLAIN or (isinstance(value, list | tuple) and all(type(one) in PLAIN for one in value))
