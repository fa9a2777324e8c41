"""The count pass: every operator call of a step comes in, FLOPs and bytes per (module, op, shapes, phase) go out.

A dispatch mode sees the shapes this rank computes on (a DTensor is opened first). Forward calls belong to the
module that runs; backward calls to the module that made the autograd node, which is marked when the module
returns.
"""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type

from distprof import formulas
from distprof.counting.functions import FunctionPass
from distprof.formulas.composite import take_apart
from distprof.formulas.cost import Cost
from distprof.formulas.higher_order import under
from distprof.model.call_paths import CallPath
from distprof.model.modules import Site
from distprof.model.scopes import Frame, ModuleScopes, in_backward
from distprof.model.tensors import dtype_name, tensors
from distprof.model.torchscript import hidden_operators

Shapes = tuple[tuple[int, ...], ...]
MARK = "distprof.call_path"
LEAF = 2**63
"""Sequence numbers from here on belong to the nodes of parameters, which no call makes."""
NOT_WORK = ("prim::", "profiler::", "c10d::", "_c10d_functional::")
"""Questions about tensors, labels, and communication, which has a table of its own."""


@dataclass(frozen=True, slots=True)
class OpKey:
    """What calls are summed over."""

    path: CallPath
    op: str
    phase: str
    shapes: str
    dtype: str | None = None
    """Element type of the first tensor input, or of the output where none came in."""
    functions: tuple[str, ...] = ()
    """The torch functions that were running, outermost first, where those are watched."""


@dataclass(slots=True)
class OpSum:
    """Calls of one kind, summed."""

    calls: int = 0
    flops: int = 0
    macs: int = 0
    causal_macs: int = 0
    recompute_macs: int = 0
    elements: int = 0
    estimate_flops: int = 0
    read_bytes: int = 0
    write_bytes: int = 0
    kind: str = "other"
    counted: bool = False
    note: str = ""

    def add(self, other: OpSum) -> None:
        """Takes in more calls of the same kind."""
        for name in SUMMED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.kind, self.counted, self.note = other.kind, other.counted, other.note

    def add_call(self, cost: Cost) -> None:
        """Takes in one call."""
        self.calls += 1
        self.flops += cost.flops
        for name in SUMMED[2:]:
            setattr(self, name, getattr(self, name) + getattr(cost, name))
        self.kind, self.counted, self.note = cost.kind, cost.counted, cost.note

    @property
    def io_bytes(self) -> int:
        """Bytes read and written."""
        return self.read_bytes + self.write_bytes


SUMMED = ("calls", "flops", "macs", "causal_macs", "recompute_macs", "elements", "estimate_flops", "read_bytes",
          "write_bytes")


class Entry(NamedTuple):
    """What is kept of a module call while it runs."""

    path: CallPath
    first: int
    """Autograd nodes of this thread from this sequence number on are the call's."""
    joined: bool
    """True where the call brought the mode to a thread of the script."""


class CountPass(TorchDispatchMode):
    """Counts while it is on; listens to the modules to know whose work it sees."""

    supports_higher_order_operators = True

    def __init__(self, scopes: ModuleScopes, phase: Callable[[], str | None], *, details: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.functions = FunctionPass(lambda: self._whose()[0]) if details else None
        """Calls of torch functions, watched only where details are asked for."""
        self.shapes: dict[Site, tuple[Shapes, Shapes]] = {}
        """Shapes that went in and came out of the first call, likewise."""
        self.num_steps = 0
        self.sums: dict[OpKey, OpSum] = defaultdict(OpSum)
        """Over the steps that ended."""
        self.calls: dict[Site, int] = defaultdict(int)
        self._error: Exception | None = None
        self._retired = False
        self._step_sums: dict[OpKey, OpSum] = defaultdict(OpSum)
        self._step_calls: dict[Site, int] = defaultdict(int)
        self._scopes = scopes
        self._phase = phase
        self._outside = CallPath(None, None)
        self._lock = threading.Lock()
        self._thread = 0
        self._home: list[Frame] = []
        """Module calls that run on the thread that started us."""

    def start(self) -> None:
        """Switches the mode on for this thread and those autograd starts."""
        self._retired = False
        self._scopes.add(self)
        self._thread, self._home = threading.get_ident(), self._scopes.frames
        self._switch_on()

    def _switch_on(self) -> None:
        self.__enter__()  # type: ignore[no-untyped-call]
        if self.functions is not None:
            self.functions.start()

    def stop(self) -> None:
        """Switches it off."""
        self._scopes.remove(self)
        self._retired = True
        self._switch_off()

    def _switch_off(self) -> None:
        if self.functions is not None:
            self.functions.stop()
        depth = torch._C._len_torch_dispatch_stack()
        if not depth or torch._C._get_dispatch_stack_at(depth - 1) is not self:
            # a mode the script entered meanwhile must not be popped in our place
            raise RuntimeError("a torch dispatch mode that the script entered is still on")
        self.__exit__(None, None, None)

    def next_step(self) -> None:
        """Takes the step that ended into the sums; one that never ends is not in them."""
        if self._error is not None:
            raise self._error
        for key, entry in self._step_sums.items():
            self.sums[key].add(entry)
        for site, calls in self._step_calls.items():
            self.calls[site] += calls
        self._step_sums.clear()
        self._step_calls.clear()
        self.num_steps += 1

    def enter(self, frame: Frame) -> None:
        """Extends the call path."""
        outer = frame.outer
        path = self._static_path(frame.site.parent) if outer is None else self._path_of(outer)
        joins = outer is None and self._is_elsewhere()
        if joins:  # modes are on in one thread only; a thread of the script that calls a module gets ours for the call
            self._switch_on()
        frame.data[self] = Entry(path.child(frame.site), torch._C._autograd._get_sequence_nr(), joins)
        if not frame.recompute and not frame.repeats_outer:
            with self._lock:
                self._step_calls[frame.site] += 1

    def _is_elsewhere(self) -> bool:
        """True on a thread of the script: not that of the step, and none that autograd or TorchScript started."""
        return threading.get_ident() != self._thread and not in_backward() and not any(
            torch._C._get_dispatch_stack_at(index) is self for index in range(torch._C._len_torch_dispatch_stack()))

    def exit(self, frame: Frame, args: Any, kwargs: Any, result: Any) -> None:
        """Marks the autograd nodes the call made, so that backward knows whose they are."""
        entry: Entry | None = frame.data.get(self)
        if entry is None:
            return
        for node in _nodes_since(entry.first, _grad_fns(result)):
            node.metadata.setdefault(MARK, entry.path)
        for name, calls in hidden_operators(frame.module).items() if result is not None else ():
            self._record_hidden(frame, name, calls, tensors((args, kwargs)), tensors(result))
        if entry.joined:
            self._switch_off()
        if self.functions is not None and frame.site not in self.shapes:
            self.shapes[frame.site] = _shapes((args, kwargs)), _shapes(result)

    def _record_hidden(self, frame: Frame, name: str, calls: int, inputs: list[torch.Tensor],
                       outputs: list[torch.Tensor]) -> None:
        """What a script does that no mode sees: nobody knows how much, so it is listed with what the script moves."""
        shapes = json.dumps([_shape(tensor) for tensor in inputs])
        phase = "recompute" if frame.recompute else "forward"
        entry = OpSum(calls=calls, read_bytes=sum(map(_bytes, inputs)), write_bytes=sum(map(_bytes, outputs)),
                      note="TorchScript runs it unseen; bytes are those of the whole script")
        with self._lock:
            self._step_sums[OpKey(self._path_of(frame), name, phase, shapes)].add(entry)

    def _path_of(self, frame: Frame) -> CallPath:
        entry: Entry | None = frame.data.get(self)
        return entry.path if entry is not None else self._outside

    def _static_path(self, site: Site | None) -> CallPath:
        # a call out of backward has no callers: those it stands below in the model take their place
        return self._outside if site is None else self._static_path(site.parent).child(site)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # fake tensors ask for their device by prim::, where an error of ours would end the process
        if self._retired or getattr(func, "namespace", None) == "prim":
            return func(*args, **kwargs)
        if any(is_traceable_wrapper_subclass_type(kind) for kind in types):
            # a DTensor or the like: let it open itself, its parts come by again
            return NotImplemented
        if not formulas.has_formula(func, kwargs):
            output = take_apart(self, func, args, kwargs)  # inference mode shows composite operators whole
            if output is not NotImplemented:
                return output
            if isinstance(func, torch._ops.HigherOrderOperator):
                return func(*under(self, args), **under(self, kwargs))
        output = func(*args, **kwargs)
        try:
            self._record(func, args, kwargs, output)
        except Exception as error:  # noqa: BLE001 (told when the step ends: no mode can be removed from in here)
            self._error, self._retired = error, True
        return output

    def _record(self, func: Any, args: Any, kwargs: Any, output: Any) -> None:
        name = formulas.name_of(func)
        if name.startswith(NOT_WORK):
            return
        path, phase = self._whose()
        inputs = tensors((args, kwargs))
        found = tensors(output)
        typed = next(iter(inputs), None) if inputs else next(iter(found), None)
        dtype = dtype_name(typed.dtype) if typed is not None else None
        shapes = json.dumps([_shape(tensor) for tensor in inputs])
        functions = tuple(self.functions.stack) if self.functions is not None and phase == "forward" else ()
        cost = formulas.cost(func, args, kwargs, output)
        with self._lock:
            self._step_sums[OpKey(path, name, phase, shapes, dtype, functions)].add_call(cost)

    def _whose(self) -> tuple[CallPath, str]:
        frame = self._scopes.current
        if frame is not None:
            return self._path_of(frame), "recompute" if frame.recompute else "forward"
        if in_backward():
            node: Any = torch._C._current_autograd_node()
            return (node.metadata.get(MARK) if node is not None else None) or self._outside, "backward"
        # a thread that TorchScript forked has our mode, and nothing on it says for which module it works
        caller = next(reversed(self._home), None) if threading.get_ident() != self._thread else None
        return (self._path_of(caller) if caller is not None else self._outside), self._phase() or "forward"


def _shapes(tree: Any) -> Shapes:
    return tuple(_shape(tensor) for tensor in tensors(tree))


def _shape(tensor: torch.Tensor) -> tuple[int, ...]:
    if is_lazy(tensor):
        return ()  # it has none yet
    # of a nested tensor torch gives no shape: its parts differ
    return (len(tensor.unbind()),) if tensor.is_nested else tuple(tensor.shape)


def _bytes(tensor: torch.Tensor) -> int:
    return int(tensor.numel()) * tensor.element_size()


def _grad_fns(result: Any) -> list[Any]:
    return [tensor.grad_fn for tensor in tensors(result) if tensor.grad_fn is not None]


def _nodes_since(first: int, ends: Iterable[Any]) -> Iterator[Any]:
    """Autograd nodes behind these that were made on this thread since the sequence number was `first`."""
    waiting, seen = list(ends), set()
    while waiting:
        node = waiting.pop()
        if node not in seen and first <= node._sequence_nr() < LEAF:
            seen.add(node)
            yield node
            waiting.extend(above for above, _ in node.next_functions if above is not None)
