"""Records the calls of torch's Python functions (F.linear, torch.matmul) with their shapes.

distprof counts dispatcher operators; other counters count these functions. From both, `distprof.peers` computes what
other counters would report.
"""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from math import prod
from opcode import opname
from typing import Any, NamedTuple, Protocol

import torch
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode, resolve_name

from distprof.model.call_paths import CallPath
from distprof.model.scopes import in_backward
from distprof.model.tensors import dtype_name
from distprof.own import lock

OPENED = ("torch.nn.functional", "torch.functional")
"""Modules of Python functions inside which torch functions are recorded too."""
OPERATOR = "operator"
OPERATORS = frozenset({"torch.Tensor.add", "torch.Tensor.mul"})
"""Methods that torch reports for the operators + and * as well."""
WRAPPERS = {
    "torch.nn.functional.interpolate": ("torch.nn.functional", "upsample"),
    "torch.functional.einsum": ("einops.einops", "einsum"),
}
"""Function -> its caller that torch does not report."""
BETWEEN = ("torch.overrides", "torch.functional", "torch.nn.functional", "einops._backends",
           "distprof.counting.torch_functions", "contextlib")
PLAIN = frozenset({type(None), bool, int, float, str})
GUARDS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


class KnownFunction(NamedTuple):
    """Properties that all calls of a function share."""

    name: str | None
    """None if the function is not recorded."""
    is_opened: bool
    has_spellings: bool


class TensorSpec(NamedTuple):
    """Shape and dtype of a tensor."""

    shape: tuple[int, ...]
    dtype: str

    def numel(self) -> int:
        return prod(self.shape)


class FunctionCall(NamedTuple):
    """Calls with equal arguments, apart from tensor values."""

    path: CallPath
    name: str
    """torch.nn.functional.linear, torch.Tensor.matmul, ..."""
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    output: Any
    outer: str | None
    """The recorded function that called this one; None if there is none."""
    has_gradient: bool = True
    """False if no gradient flows through it, because of torch.no_grad() or frozen parameters: torch may then use other
    kernels."""
    spelling: str = ""
    """Spelling in the source if `name` does not show it: `operator` for a + b, torch.nn.functional.upsample."""

    def argument(self, position: int, name: str, default: object = None) -> Any:
        """Returns an argument that was passed by position or by name."""
        if position < len(self.args):
            return self.args[position]
        return dict(self.kwargs).get(name, default)


class Flow(Protocol):
    """An observer that relates function calls to the operators that ran inside them."""

    @property
    def num_operators(self) -> int: ...

    def add_function(self, call: FunctionCall, first: int, output: object) -> None: ...


class _Names(threading.local):
    def __init__(self) -> None:
        self.names: list[str] = []


class FunctionPass(TorchFunctionMode):
    """Counts equal calls while it is on.

    Args:
        path: Returns the call path of the running module.
        names: Functions to record, besides the Python functions that may call them; None: all.
        flow: Gets every recorded call with the number of operators that had run before it.
    """

    def __init__(self, path: Callable[[], CallPath], names: Container[str] | None = None,
                 flow: Flow | None = None) -> None:
        super().__init__()
        self._counted: dict[tuple[Any, ...], list[int]] = {}
        """Fields of `FunctionCall` -> number of calls, in a list of one element: a lookup is slow, as it compares
        arguments."""
        self._known: dict[Any, KnownFunction] = {}
        self._running_here = _Names()
        self._lock = lock()
        self._opened: dict[types.FunctionType, types.FunctionType] = {}  # per pass, because scripts may patch functions
        self._path = path
        self._names = names
        self._flow = flow

    def start(self) -> None:
        """Switches the mode on for this thread."""
        self.__enter__()  # type: ignore[no-untyped-call]

    def stop(self) -> None:
        """Switches it off; modes that the program switched on later stay on."""
        for mode in reversed(self._pop()):
            _push_mode(mode)

    def _pop(self) -> list[Any]:
        """Takes the mode and those above it off the stack; returns the latter, top first."""
        above: list[Any] = []
        while torch._C._len_torch_function_stack() and (top := _pop_mode()) is not self:
            above.append(top)
        return above

    @contextmanager
    def aside(self) -> Iterator[None]:
        """A context in which it is off on this thread, while modes of the program stay on."""
        stack = [torch._C._get_function_stack_at(place) for place in range(torch._C._len_torch_function_stack())]
        if not any(mode is self for mode in stack):
            yield
            return
        above = self._pop()
        for mode in reversed(above):
            _push_mode(mode)
        try:
            yield
        finally:
            for _ in above:
                _pop_mode()
            for mode in (self, *reversed(above)):
                _push_mode(mode)

    @property
    def calls(self) -> dict[FunctionCall, int]:
        """Call -> how often it was made."""
        return {FunctionCall(*call): times for call, (times,) in self._counted.items()}

    def forget(self) -> None:
        """Drops what was counted."""
        self._counted.clear()

    @property
    def stack(self) -> list[str]:
        """Recorded functions running on this thread, outermost first."""
        return self._running_here.names

    def __torch_function__(self, func: Any, _types: Sequence[type], args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        if kwargs is None:
            kwargs = {}
        known = self._known.get(func) or self._look_up(func)
        name = known.name
        if name is None or in_backward():
            return self._call(func, args, kwargs)
        inputs = _all_specs(args), tuple(zip(kwargs, _all_specs(kwargs.values()), strict=True)) if kwargs else ()
        spelled = _spelling(name, sys._getframe(1)) if known.has_spellings else ""
        first = self._flow.num_operators if self._flow is not None else 0
        running = self._running_here.names
        outer = running[-1] if running else None
        opened = known.is_opened and name not in running
        running.append(name)
        try:
            output = self._open(func, args, kwargs) if opened else self._call(func, args, kwargs)
        finally:
            running.pop()
        call = self._path(), name, *inputs, _all_specs((output,))[0], outer, _has_gradient(output), spelled
        with self._lock:
            counted = self._counted.get(call)
            if counted is None:
                self._counted[call] = [1]
            else:
                counted[0] += 1
        if self._flow is not None:
            self._flow.add_function(FunctionCall(*call), first, output)
        return output

    def _look_up(self, func: object) -> KnownFunction:
        name, opened = function_name(func), _is_opened(func)
        if name is not None and not opened and self._names is not None and name not in self._names:
            name = None
        known = self._known[func] = KnownFunction(name, opened, name in OPERATORS or name in WRAPPERS)
        return known

    def _open(self, func: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self:
            if func not in self._opened:
                self._opened[func] = _unguarded(func)
            return self._call(self._opened[func], args, kwargs)

    def _call(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return func(*args, **kwargs)


def _has_gradient(output: object) -> bool:
    first = output[0] if isinstance(output, (tuple, list)) and output else output
    return isinstance(first, torch.Tensor) and first.requires_grad


def _is_opened(func: object) -> bool:
    return isinstance(func, types.FunctionType) and func.__module__ in OPENED


def _unguarded(func: types.FunctionType) -> types.FunctionType:
    """Returns a copy of a function without its check for modes, which would call this mode in an endless recursion."""
    scope = func.__globals__ | dict.fromkeys(GUARDS, lambda *_: False)
    twin = types.FunctionType(func.__code__, scope, func.__name__, func.__defaults__, func.__closure__)
    twin.__kwdefaults__ = func.__kwdefaults__
    return twin


@cache
def function_name(func: object) -> str | None:
    """Returns the qualified name of a torch function; None for queries about a tensor, like its shape."""
    simple = getattr(func, "__name__", None)
    if simple is None or simple in ("__get__", "__set__", "__delete__", "size", "dim", "stride", "is_floating_point"):
        return None
    name = resolve_name(func) or f"{getattr(func, '__module__', None) or 'torch'}.{simple}"
    is_alias = name.rpartition(".")[0] == "torch" and getattr(torch, simple, None) is func  # torch.spmm is torch.mm
    return f"torch.{simple}" if is_alias else name


def _all_specs(values: Iterable[Any]) -> tuple[Any, ...]:
    """Returns arguments as hashable values; tensors become their specs."""
    # most cases in one function: it is called twice per call of a torch function
    found: list[Any] = []
    for value in values:
        if type(value) in PLAIN:
            found.append(value)
        elif isinstance(value, torch.Tensor):
            found.append(_tensor_spec(None if value.is_nested else value.shape, value.dtype))
        else:
            found.append(_specs(value))
    return tuple(found)


def _specs(tree: object) -> Any:
    if isinstance(tree, (tuple, list)):
        return _all_specs(tree)
    if isinstance(tree, dict):
        return tuple(zip(tree, _all_specs(tree.values()), strict=True))
    if isinstance(tree, (int, float, str, slice)):
        return (tree.start, tree.stop, tree.step) if isinstance(tree, slice) else tree
    return type(tree).__name__


@lru_cache(maxsize=4096)
def _tensor_spec(shape: torch.Size | None, dtype: torch.dtype) -> TensorSpec:
    # a nested tensor has no shape
    return TensorSpec(tuple(shape or ()), dtype_name(dtype))


def _spelling(name: str, frame: types.FrameType | None) -> str:
    """Returns the spelling of a call in the source at `frame` if the function's name does not show it; '' if it does.

    Other counters treat `a + b` and `a.add(b)` differently; torch reports both as `torch.Tensor.add`.
    """
    if frame is None:
        return ""
    if name in OPERATORS:
        return OPERATOR if _is_operator(name.rpartition(".")[2], frame.f_code, frame.f_lasti) else ""
    return _wrapper(WRAPPERS[name], frame) if name in WRAPPERS else ""


@lru_cache(maxsize=4096)
def _is_operator(method: str, code: types.CodeType, at: int) -> bool:
    # functions like sum() use the operator from C; only code that calls the method contains its name
    return method not in code.co_names or opname[code.co_code[at]].startswith(("BINARY_", "INPLACE_"))


def _wrapper(wrapper: tuple[str, str], frame: types.FrameType | None) -> str:
    while frame is not None:
        module = frame.f_globals.get("__name__")
        if (module, frame.f_code.co_name) == wrapper:
            return ".".join(wrapper)
        if module not in BETWEEN:
            return ""
        frame = frame.f_back
    return ""
