"""Work that no dispatch mode sees: of compiled code, of kernels that Python launches itself, of other libraries.

Compiled code may refuse to run under a mode. What `torch.compile(...).aot_compile` made checks guards at each call, and
raises where a mode is on that was not on when it was compiled. A package of AOTInductor calls its kernels by itself,
and a CUDA graph launches those that it has.

A module with such work runs no operator that computes, and returns memory that it was not given.
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
"""Module, class and method -> what a call of it is listed as."""
Report = Callable[[str, Any, Any, Any], None]
"""Gets what a call is listed as, its arguments by position and by name, and its result."""


class OpaqueCalls:
    """Runs such calls as if nothing were on, between `start` and `stop`, and reports them."""

    def __init__(self, plainly: Callable[[], AbstractContextManager[None]],
                 report: Report = lambda *_: None) -> None:
        """Prepares.

        Args:
            plainly: A context in which the mode is off.
            report: Called behind each outermost call; must not raise.
        """
        self._plainly = plainly
        self._report = report
        self._wrapped: list[tuple[type, str, Any, Any]] = []
        self._running = threading.local()

    def start(self) -> None:
        """Puts a function in front of the methods of each class that is loaded."""
        for (module, name, method), label in OPAQUE.items():
            kind = getattr(sys.modules.get(module), name, None)
            if isinstance(kind, type) and method in vars(kind) and kind not in [known for known, *_ in self._wrapped]:
                own = vars(kind)[method]
                ours = self._in_front_of(own, label)
                setattr(kind, method, ours)
                self._wrapped.append((kind, method, own, ours))

    def stop(self) -> None:
        """Puts back what was there, unless somebody put something in front of ours."""
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
    """True where a mode is on the stack of this thread."""
    return any(torch._C._get_dispatch_stack_at(index) is mode for index in range(torch._C._len_torch_dispatch_stack()))


@contextmanager
def without(mode: TorchDispatchMode) -> Iterator[None]:
    """Takes a mode off this thread, if it is on; modes that the script entered since then stay on."""
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
"""What keeps a tensor for later: attributes, caches."""


def hidden_results(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any],
                   result: object) -> list[torch.Tensor]:
    """The results of a module call that ran no operator which computes, without those that were there before it."""
    known = {_memory(tensor) for tensor in tensors((args, kwargs))}
    found = [tensor for tensor in tensors(result) if type(tensor) in (torch.Tensor, nn.Parameter)
             and tensor.numel() and tensor.dim() > 1]  # scalars and lists are mostly constants that stand in the script
    found = [tensor for tensor in found if _memory(tensor) not in known | {None}]
    if not found:
        return []
    for inner in module.modules():
        known.update(map(_memory, tensors(list(vars(inner).values()))))
        known.update(map(_memory, (*inner._parameters.values(), *inner._buffers.values())))
    return [tensor for tensor in found if _memory(tensor) not in known and not _is_kept(tensor, result, found)]


def _memory(tensor: torch.Tensor | None) -> int | None:
    """The storage of a tensor, which views share; None without one of its own (sparse, nested)."""
    try:
        return None if tensor is None else int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return None


def _is_kept(tensor: torch.Tensor, *ours: Any) -> bool:
    """True where something else holds the tensor, or the one that it is a view of: a table in a cache.

    So it is in doubt: what a program has frozen for its garbage collector is not found.
    """
    if gc.get_freeze_count():
        return True
    if tensor._is_view() and tensor._base is not None:
        tensor = tensor._base
    return any(isinstance(holder, HOLDERS) and not any(holder is own for own in ours)
               for holder in gc.get_referrers(tensor))
