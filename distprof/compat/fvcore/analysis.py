"""fvcore's analysis object on our counts: a model, inputs and handles come in, sums by module and operator go out.

Nothing is traced: the model runs once, watched, and is left as it was.
"""

from __future__ import annotations

import inspect
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from numbers import Number
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from distprof.counting.count import count
from distprof.counting.counts import Counts
from distprof.errors import UsageError
from distprof.model.call_paths import CallPath
from distprof.model.modules import is_wrapper
from distprof.peers.fvcore import IGNORED, named
from distprof.peers.jit import nodes
from distprof.peers.values import Value

Handle = Callable[[list[Any], list[Any]], Any]
"""Values that went into an operator and came out -> a number, or a Counter of numbers by name."""
TRACER_WARNINGS = ("all", "no_tracer_warning", "none")
ANCESTORS = ("owner", "caller")
FORWARDLESS = (None, nn.Module.forward, nn.Identity.forward)
"""Of modules that are not meant to be called, or do nothing then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Sums of one run, by canonical module name."""

    counts: dict[str, Counter[str]]
    unsupported_ops: dict[str, Counter[str]]
    uncalled_mods: set[str]


class JitModelAnalysis:
    """Sums what handles say about the operators of one forward call; runs the model at the first question.

    Args:
        model: A module; DDP, DataParallel and compiled ones are looked into.
        inputs: A tensor, a tuple of positional arguments, or a mapping of keyword arguments.
        kwargs: More keyword arguments.

    Raises:
        UsageError: It is no module.
        Exception: What the model raises, at the first question.
    """

    def __init__(self, model: nn.Module, inputs: Any = (), kwargs: Mapping[str, Any] | None = None) -> None:
        if not isinstance(model, nn.Module):
            raise UsageError(f"expected a torch.nn.Module, found {type(model).__name__}")
        self._model: nn.Module = getattr(model, "_orig_mod", model) if _is(model, "OptimizedModule") else model
        self._inputs = inputs
        self._kwargs = dict(kwargs or {})
        self._op_handles: dict[str, Handle] = {}
        self._ignored_ops = set(IGNORED)
        self._modules = dict(_named_modules(self._model))
        self._names: dict[nn.Module, str] = {}
        self._canonical = {name: self._names.setdefault(module, name) for name, module in self._modules.items()}
        self._stats: Statistics | None = None
        self._warn_unsupported_ops = self._warn_uncalled_modules = True
        self._tracer_warnings, self._ancestor_mode = "no_tracer_warning", "owner"

    @property
    def model(self) -> nn.Module:
        """The model that is analysed; of a compiled one, the original."""
        return self._model

    def total(self, module_name: str = "") -> int:
        """Sum over all operators inside a module."""
        return sum(self.by_operator(module_name).values())

    def by_operator(self, module_name: str = "") -> Counter[str]:
        """Sums inside a module by operator."""
        return self._analysed().counts[self.canonical_module_name(module_name)]

    def by_module(self) -> Counter[str]:
        """Sums by module, submodules included; '' is the model."""
        return Counter({name: sum(sums.values()) for name, sums in self._analysed().counts.items()})

    def by_module_and_operator(self) -> dict[str, Counter[str]]:
        """Sums by module, submodules included, and operator."""
        return self._analysed().counts

    def unsupported_ops(self, module_name: str = "") -> Counter[str]:
        """Calls of operators inside a module that have no handle and are not ignored."""
        return self._analysed().unsupported_ops[self.canonical_module_name(module_name)]

    def uncalled_modules(self) -> set[str]:
        """Modules in which nothing ran: never called, called by another method than `forward`, or empty."""
        return self._analysed().uncalled_mods

    def set_op_handle(self, *args: Any, **kwargs: Handle | None) -> Self:
        """Sets how operators count.

        Args:
            *args: Operator name, handle, operator name, handle, ...
            **kwargs: Operator name = handle. None: the operator is free, even if it had a handle.

        Raises:
            TypeError: A name without a handle.
        """
        if len(args) % 2:
            raise TypeError(f"expected pairs of an operator name and a handle, found {len(args)} arguments")
        self._stats = None
        for name, handle in (dict(zip(args[::2], args[1::2], strict=True)) | kwargs).items():
            self._op_handles.pop(name, None)
            if handle is None:
                self._ignored_ops.add(name)
            else:
                self._op_handles[name] = handle
        return self

    def clear_op_handles(self) -> Self:
        """Forgets all handles and what was to be ignored, the defaults of the class as well."""
        self._op_handles, self._ignored_ops, self._stats = {}, set(IGNORED), None
        return self

    def canonical_module_name(self, name: str) -> str:
        """The name under which results have a module: the first of its names where it is shared.

        Raises:
            KeyError: The model has no such module.
        """
        if name not in self._canonical:
            raise KeyError(f"expected the name of a module of {type(self._model).__name__}, found {name!r}")
        return self._canonical[name]

    def copy(self, new_model: nn.Module | None = None, new_inputs: Any = None) -> Self:
        """The same settings for another model or other inputs."""
        twin = type(self)(self._model if new_model is None else new_model,
                          self._inputs if new_inputs is None else new_inputs)
        twin._kwargs = dict(self._kwargs)
        twin._op_handles, twin._ignored_ops = dict(self._op_handles), set(self._ignored_ops)
        twin._warn_unsupported_ops = self._warn_unsupported_ops
        twin._warn_uncalled_modules = self._warn_uncalled_modules
        return twin.tracer_warnings(self._tracer_warnings).ancestor_mode(self._ancestor_mode)

    def tracer_warnings(self, mode: str) -> Self:
        """Warnings while the model runs: 'all', 'no_tracer_warning' (torch.jit.TracerWarning is hidden) or 'none'."""
        self._tracer_warnings = _one_of(mode, TRACER_WARNINGS)
        return self

    def ancestor_mode(self, mode: str) -> Self:
        """Whose an operator is: of the innermost module and its 'owner's, or of every 'caller' that is running."""
        self._ancestor_mode = _one_of(mode, ANCESTORS)
        self._stats = None
        return self

    def unsupported_ops_warnings(self, enabled: bool) -> Self:  # noqa: FBT001 (fvcore's signature)
        """Whether the log names operators without a handle."""
        self._warn_unsupported_ops = enabled
        return self

    def uncalled_modules_warnings(self, enabled: bool) -> Self:  # noqa: FBT001 (fvcore's signature)
        """Whether the log names modules in which nothing ran."""
        self._warn_uncalled_modules = enabled
        return self

    def _analysed(self) -> Statistics:
        if self._stats is None:
            self._stats = self._sums(self._count())
            self._tell(self._stats)
        return self._stats

    def _count(self) -> Counts:
        args, kwargs = self._arguments()
        parallel = isinstance(self._model, (nn.parallel.DistributedDataParallel, nn.DataParallel))
        model = self._model.module if parallel else self._model
        with warnings.catch_warnings():
            if self._tracer_warnings == "none":
                warnings.simplefilter("ignore")
            elif self._tracer_warnings == "no_tracer_warning":
                warnings.filterwarnings("ignore", category=torch.jit._trace.TracerWarning)
            return count(model, *args, **kwargs)

    def _arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if isinstance(self._inputs, Mapping) and _takes(self._model, self._inputs):
            return (), {**self._inputs, **self._kwargs}
        return self._inputs if isinstance(self._inputs, tuple) else (self._inputs,), self._kwargs

    def _sums(self, counts: Counts) -> Statistics:
        sums: dict[str, Counter[str]] = {name: Counter() for name in self._names.values()}
        unsupported: dict[str, Counter[str]] = {name: Counter() for name in self._names.values()}
        seen: set[str] = set()
        for node in nodes(counts.functions, self._op_handles.__contains__):
            callers = self._callers(node.path)
            inside = self._owners(node.path) if self._ancestor_mode == "owner" else callers
            seen |= callers | inside
            if node.kind in self._op_handles:
                for _ in range(node.calls):
                    result = self._result(node.kind, named(node, self._op_handles[node.kind](
                        list(node.inputs), list(node.outputs))))
                    for name in inside:
                        sums[name] += result
            elif node.kind not in self._ignored_ops:
                for name in inside:
                    unsupported[name][node.kind] += node.calls
        for op in counts.ops:
            if op.phase == "forward" and op.macs and not op.functions:  # inside scripted code
                for name in (op.within | {""}) & unsupported.keys():
                    unsupported[name][op.op] += op.calls
        return Statistics(counts=sums, unsupported_ops=unsupported, uncalled_mods=set(self._names.values()) - seen)

    @staticmethod
    def _result(kind: str, result: Counter[str]) -> Counter[str]:
        values: list[Any] = list(result.values())
        for value in values:
            if not isinstance(value, (int, float, np.int64, np.float64)):
                what = "a type that may overflow" if isinstance(value, Number) else "no number"
                raise ValueError(f"expected int, float, int64 or float64 from the handle of {kind}, "
                                 f"found {type(value).__name__}, {what}")
        return result

    def _callers(self, path: CallPath) -> set[str]:
        """Modules that are running, with the wrappers around them."""
        found = {""}
        for module in _running(path):
            name = self._names.get(module)
            while name:
                found.add(name)
                above = name.rpartition(".")[0]
                name = above if is_wrapper(self._modules[above]) else None
        return found

    def _owners(self, path: CallPath) -> set[str]:
        """The innermost running module that is in the model, and those above it by name."""
        for module in _running(path):
            if module in self._names:
                parts = self._names[module].split(".")
                return {".".join(parts[:length]) for length in range(len(parts) + 1)}
        return {""}

    def _tell(self, stats: Statistics) -> None:
        log = logging.getLogger(__name__)
        if self._warn_unsupported_ops:
            for kind, calls in stats.unsupported_ops[""].items():
                log.warning("no rule for operator %s, called %d times: not counted", kind, calls)
        silent = sorted(name for name in stats.uncalled_mods
                        if getattr(type(self._modules[name]), "forward", None) not in FORWARDLESS)
        if self._warn_uncalled_modules and silent:
            log.warning("nothing ran in these modules; what other methods than forward did is counted for the modules "
                        "above them: %s", ", ".join(silent))


def _running(path: CallPath) -> Iterator[nn.Module]:
    """Modules that were running, innermost first."""
    inner: CallPath | None = path
    while inner is not None and inner.site is not None:
        module = inner.site.module()
        if module is not None:
            yield module
        inner = inner.outer


def get_shape(value: Value) -> list[int] | None:
    """Shape of a value that a handle gets; None where it is no tensor."""
    return value.type().sizes() if value.isCompleteTensor() else None


def _named_modules(model: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """All names of all modules, parents first; a shared module has several."""
    yield name, model
    for key, child in model._modules.items():
        if child is not None:
            yield from _named_modules(child, f"{name}.{key}" if name else key)


def _takes(model: nn.Module, arguments: Mapping[str, Any]) -> bool:
    """True where a model's forward accepts these keyword arguments."""
    inner = model.module if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)) else model
    try:
        inspect.signature(inner.forward).bind(**arguments)
    except TypeError:
        return False
    return True


def _is(model: nn.Module, class_name: str) -> bool:
    return type(model).__name__ == class_name


def _one_of(value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ValueError(f"expected one of {', '.join(allowed)}, found {value!r}")
    return value
