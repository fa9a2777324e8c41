"""Work that no dispatch mode sees: compiled code, kernels launched from Python, and other libraries.

Compiled code may refuse to run under a mode. The result of `torch.compile(...).aot_compile` checks guards at each call,
and raises if a mode is on that was off during compilation. An AOTInductor package calls its kernels directly, and a
CUDA graph launches its own.

A module with such work runs no operator that computes, but returns memory that it did not get as an argument.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode

from distprof.model.tensors import tensors

OPAQUE = {
    ("torch._dynamo.aot_compile", "AOTCompiledFunction", "__call__"): "compiled::aot_compile",
    ("torch._dynamo.aot_compile", "AOTCompiledModel", "__call__"): "compiled::aot_compile",
    ("torch.export.pt2_archive._package", "AOTICompiledModel", "__call__"): "compiled::aot_inductor_package",
    ("torch._inductor.package.package", "AOTICompiledModel", "__call__"): "compiled::aot_inductor_package",
    ("torch.cuda.graphs", "CUDAGraph", "replay"): "cuda::graph_replay",
}
"""Python module, class and method -> name under which its calls are listed."""
Report = Callable[[str, Any, Any, Any], None]
"""Gets the name under which a call is listed, its positional and keyword arguments, and its result."""


class OpaqueCalls:
    """Between `start` and `stop`, runs such calls with the mode off, and reports them."""

    def __init__(self, plainly: Callable[[], AbstractContextManager[None]],
                 report: Report = lambda *_: None) -> None:
        """Wraps nothing yet.

        Args:
            plainly: A context in which the mode is off.
            report: Called after each outermost call; must not raise.
        """
        self._plainly = plainly
        self._report = report
        self._wrapped: list[tuple[type, str, Any, Any]] = []
        self._running = threading.local()

    def start(self) -> None:
        """Wraps the methods of the classes that are loaded."""
        for (module, name, method), label in OPAQUE.items():
            kind = getattr(sys.modules.get(module), name, None)
            if isinstance(kind, type) and method in vars(kind) and kind not in [known for known, *_ in self._wrapped]:
                own = vars(kind)[method]
                ours = self._in_front_of(own, label)
                setattr(kind, method, ours)
                self._wrapped.append((kind, method, own, ours))

    def stop(self) -> None:
        """Restores the methods, unless someone has wrapped our wrapper."""
        for kind, method, own, ours in self._wrapped:
            if vars(kind).get(method) is ours:
                setattr(kind, method, own)
        self._wrapped.clear()

    def _in_front_of(self, own: Callable[..., Any], label: str) -> Callable[..., Any]:
        @wraps(own)
        def call(called: object, *args: Any, **kwargs: Any) -> Any:
            if getattr(self._running, "any", False):
                return own(called, *args, **kwargs)
            self._running.any = True
            try:
                with self._plainly():
                    result = own(called, *args, **kwargs)
            finally:
                self._running.any = False
            self._report(label, args, kwargs, result)
            return result

        return call


def is_on(mode: TorchDispatchMode) -> bool:
    """Returns whether a mode is on this thread's stack."""
    return any(torch._C._get_dispatch_stack_at(index) is mode for index in range(torch._C._len_torch_dispatch_stack()))


@contextmanager
def without(mode: TorchDispatchMode) -> Iterator[None]:
    """Takes a mode off this thread, if it is on; modes that the script entered later stay on."""
    if not is_on(mode):
        yield
        return
    above: list[TorchDispatchMode] = []
    while (top := _pop_mode()) is not mode:
        above.append(top)
    for other in reversed(above):
        _push_mode(other)
    try:
        yield
    finally:
        for _ in above:
            _pop_mode()
        for other in (mode, *reversed(above)):
            _push_mode(other)


HOLDERS = (dict, list, set)
"""Objects that keep a tensor for later, like attributes and caches."""


def hidden_results(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any],
                   result: object) -> list[torch.Tensor]:
    """Returns those results of a module call without computing operators that did not exist before the call."""
    known = {_memory(tensor) for tensor in tensors((args, kwargs))}
    found = [tensor for tensor in tensors(result) if type(tensor) in (torch.Tensor, nn.Parameter)
             and tensor.numel() and tensor.dim() > 1]  # scalars and vectors are mostly constants in the script
    found = [tensor for tensor in found if _memory(tensor) not in known | {None}]
    if not found:
        return []
    for inner in module.modules():
        known.update(map(_memory, tensors(list(vars(inner).values()))))
        known.update(map(_memory, (*inner._parameters.values(), *inner._buffers.values())))
    return [tensor for tensor in found if _memory(tensor) not in known and not _is_kept(tensor, result, found)]


def _memory(tensor: torch.Tensor | None) -> int | None:
    """Returns the storage of a tensor, which views share; None without its own (sparse, nested)."""
    try:
        return None if tensor is None else int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return None


def _is_kept(tensor: torch.Tensor, *ours: Any) -> bool:
    """Returns whether something else holds the tensor or the base of the view: a cached table.

    Also returns True if the program has frozen objects (`gc.freeze`), because their references cannot be found.
    """
    if gc.get_freeze_count():
        return True
    if tensor._is_view() and tensor._base is not None:
        tensor = tensor._base
    return any(isinstance(holder, HOLDERS) and not any(holder is own for own in ours)
               for holder in gc.get_referrers(tensor))
