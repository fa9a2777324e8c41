"""fvcore's analyses of flops and activations, based on distprof's counts.

Nothing is traced: the model runs once under distprof's counter and is then restored.
"""

from __future__ import annotations

import copy
import inspect
import logging
import warnings
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import nn

from distprof.compat.fvcore.module_sums import Handle, ModuleNames, ModuleSums, sum_by_module
from distprof.counting.count import Counts, count_with_unused
from distprof.errors import UsageError
from distprof.model.held_state import attributes_kept
from distprof.peers.fvcore import ACTIVATIONS, FLOPS, FREE

FORWARDLESS = (None, nn.Module.forward, nn.Identity.forward)
"""`forward` methods of modules that are not meant to be called or do nothing."""
HIDDEN = {"none": Warning, "no_tracer_warning": torch.jit._trace.TracerWarning}
"""Mode of `tracer_warnings` -> warnings that it hides; `all` hides nothing."""
LOG = logging.getLogger(__name__)


class JitModelAnalysis:
    """Sums the results of handles over the operators of one forward call; runs the model when results are first needed.

    Args:
        model: A module; wrappers (DDP, DataParallel, torch.compile) are unwrapped.
        inputs: A tensor, a tuple of positional arguments, or a mapping of keyword arguments.
        kwargs: Further keyword arguments.

    Raises:
        UsageError: `model` is not a module.
        Exception: Whatever the model raises, when results are first needed.
    """

    # settings are replaced, never modified, because copies share them
    _handles: Mapping[str, Handle] = {}
    """Operator -> its handle, which counts it."""
    _free: frozenset[str] = FREE
    """Operators that need no handle."""
    _ancestors = "owner"
    _warnings = "no_tracer_warning"
    _logs_unsupported = _logs_uncalled = True

    def __init__(self, model: nn.Module, inputs: object = (), kwargs: Mapping[str, Any] | None = None) -> None:
        self._kwargs = dict(kwargs or {})
        self._prepare(model, inputs)

    def _prepare(self, model: nn.Module, inputs: object) -> None:
        self._names, self._inputs = ModuleNames(_original(model)), inputs
        self._found: ModuleSums | None = None

    @property
    def model(self) -> nn.Module:
        """The analysed model; for a compiled one, the original."""
        return self._names.modules[""]

    def total(self, module_name: str = "") -> int:
        """Returns the sum over all operators inside a module."""
        return sum(self.by_operator(module_name).values())

    def by_operator(self, module_name: str = "") -> Counter[str]:
        """Returns the sums inside a module, by operator."""
        return self._sums().counted[self._names.canonical(module_name)]

    def by_module(self) -> Counter[str]:
        """Returns the sums by module, including submodules; '' is the model."""
        return Counter({name: sum(amounts.values()) for name, amounts in self._sums().counted.items()})

    def by_module_and_operator(self) -> dict[str, Counter[str]]:
        """Returns the sums by module, including submodules, and operator."""
        return self._sums().counted

    def unsupported_ops(self, module_name: str = "") -> Counter[str]:
        """Returns the numbers of calls of operators inside a module that have no handle and are not ignored."""
        return self._sums().unsupported[self._names.canonical(module_name)]

    def uncalled_modules(self) -> set[str]:
        """Returns modules in which nothing ran: not called, called through a method other than `forward`, or empty."""
        return self._sums().untouched

    def set_op_handle(self, *args: Any, **kwargs: Handle | None) -> Self:
        """Sets how operators are counted.

        Args:
            *args: Operator name, handle, operator name, handle, ...
            **kwargs: Operator name = handle; None to ignore the operator, even if it had a handle.

        Raises:
            TypeError: A name has no handle.
        """
        if len(args) % 2:
            raise TypeError(f"arguments must be pairs of an operator name and a handle; found {len(args)} arguments")
        changed: dict[str, Handle | None] = dict(zip(args[::2], args[1::2], strict=True)) | kwargs
        handles = {name: handle for name, handle in ({**self._handles, **changed}).items() if handle is not None}
        self._handles, self._free = handles, self._free | (changed.keys() - handles.keys())
        self._found = None
        return self

    def clear_op_handles(self) -> Self:
        """Forgets all handles and ignored operators, including the defaults of the class."""
        self._handles, self._free, self._found = {}, FREE, None
        return self

    def canonical_module_name(self, name: str) -> str:
        """Returns the name of a module in results: the first of its names if it is shared.

        Raises:
            KeyError: The model has no such module.
        """
        return self._names.canonical(name)

    def copy(self, new_model: nn.Module | None = None, new_inputs: object = None) -> Self:
        """Returns an analysis with the same settings for another model or other inputs."""
        twin = copy.copy(self)
        twin._prepare(self.model if new_model is None else new_model,
                      self._inputs if new_inputs is None else new_inputs)
        return twin

    def tracer_warnings(self, mode: str) -> Self:
        """Sets which warnings are shown while the model runs: 'all', 'no_tracer_warning' (not TracerWarning) or
        'none'."""
        self._warnings = _one_of(("all", "no_tracer_warning", "none"), mode)
        return self

    def ancestor_mode(self, mode: str) -> Self:
        """Sets which modules an operator counts for: the innermost module and its 'owner's, or every running
        'caller'."""
        self._ancestors, self._found = _one_of(("owner", "caller"), mode), None
        return self

    def unsupported_ops_warnings(self, enabled: bool) -> Self:  # noqa: FBT001 (fvcore's signature)
        """Sets whether operators without a handle are logged."""
        self._logs_unsupported = enabled
        return self

    def uncalled_modules_warnings(self, enabled: bool) -> Self:  # noqa: FBT001 (fvcore's signature)
        """Sets whether modules in which nothing ran are logged."""
        self._logs_uncalled = enabled
        return self

    def quiet(self) -> Self:
        """Disables all warnings permanently, as text functions do."""
        self._warnings, self._logs_unsupported, self._logs_uncalled = "none", False, False
        return self

    def _sums(self) -> ModuleSums:
        if self._found is None:
            counts = _counts(self.model, self._inputs, self._kwargs, self._warnings)
            self._found = sum_by_module(counts, self._names, self._handles, self._free, self._ancestors)
            self._log(self._found)
        return self._found

    def _log(self, sums: ModuleSums) -> None:
        if self._logs_unsupported:
            for kind, calls in sums.unsupported[""].items():
                LOG.warning("no rule for operator %s, called %d times: not counted", kind, calls)
        silent = sorted(name for name in sums.untouched
                        if getattr(type(self._names.modules[name]), "forward", None) not in FORWARDLESS)
        if self._logs_uncalled and silent:
            LOG.warning("forward of these modules never ran; work of their other methods is counted for the modules "
                        "above them: %s", ", ".join(silent))


def _original(model: nn.Module) -> nn.Module:
    """Returns the module that torch.compile has wrapped, or the module itself."""
    if not isinstance(model, nn.Module):
        raise UsageError(f"expected a torch.nn.Module, not {type(model).__name__}")
    inner: nn.Module = getattr(model, "_orig_mod", model) if type(model).__name__ == "OptimizedModule" else model
    return inner


def _counts(model: nn.Module, inputs: Any, kwargs: Mapping[str, Any], shown: str) -> Counts:
    """Counts one call of the model; warnings are shown as set by `tracer_warnings`."""
    if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
        model = model.get_submodule("module")
    if isinstance(inputs, Mapping) and _accepts(model, inputs):
        inputs, kwargs = (), {**inputs, **kwargs}
    args = inputs if isinstance(inputs, tuple) else (inputs,)
    with warnings.catch_warnings():
        if shown in HIDDEN:
            warnings.simplefilter("ignore", HIDDEN[shown])
        with attributes_kept(model, strict=False):
            return count_with_unused(model, *args, **kwargs)


def _accepts(model: nn.Module, arguments: Mapping[str, Any]) -> bool:
    """Returns whether the model's forward accepts these keyword arguments."""
    try:
        inspect.signature(model.forward).bind(**arguments)
    except TypeError:
        return False
    return True


def _one_of(choices: tuple[str, ...], found: str) -> str:
    if found not in choices:
        raise ValueError(f"unknown value {found!r}; choose from {', '.join(choices)}")
    return found


class FlopCountAnalysis(JitModelAnalysis):
    """Flops by module and operator in fvcore's convention: 1 multiply-accumulate is 1 flop.

    Example:
        >>> flops = FlopCountAnalysis(model, torch.randn(1, 3, 224, 224))
        >>> flops.total(), flops.by_operator(), flops.unsupported_ops()
    """

    _handles = FLOPS


class ActivationCountAnalysis(JitModelAnalysis):
    """Elements in the outputs of convolutions and matrix products, by module and operator."""

    _handles = ACTIVATIONS


Totals = tuple[defaultdict[str, float], Counter[str]]
"""Sums by operator, and numbers of calls of operators without a handle."""


def flop_count(model: nn.Module, inputs: object, supported_ops: Mapping[str, Handle | None] | None = None) -> Totals:
    """Counts flops, in units of 10^9.

    Args:
        model: The model to run.
        inputs: Its positional arguments.
        supported_ops: Handles that complement or replace the default ones.
    """
    return _totals(FlopCountAnalysis(model, inputs), supported_ops, 1e9)


def activation_count(model: nn.Module, inputs: object,
                     supported_ops: Mapping[str, Handle | None] | None = None) -> Totals:
    """Counts activations, in units of 10^6; arguments as for `flop_count`."""
    return _totals(ActivationCountAnalysis(model, inputs), supported_ops, 1e6)


def _totals(analysis: JitModelAnalysis, handles: Mapping[str, Handle | None] | None, unit: float) -> Totals:
    sums = analysis.set_op_handle(**(handles or {})).by_operator()
    return defaultdict(float, {name: number / unit for name, number in sums.items()}), analysis.unsupported_ops()
