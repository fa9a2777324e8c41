"""fvcore's `JitModelAnalysis` on distprof's counts.

Nothing is traced: the model runs once, watched, and is left as it was.
"""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

from torch import nn

from distprof.compat.fvcore.handles import Handle
from distprof.compat.fvcore.model_call import ModelCall
from distprof.compat.fvcore.module_names import ModuleNames
from distprof.compat.fvcore.module_sums import ModuleSums, sum_by_module
from distprof.compat.fvcore.settings import Settings
from distprof.errors import UsageError

FORWARDLESS = (None, nn.Module.forward, nn.Identity.forward)
"""`forward` of modules that are not meant to be called, or do nothing then."""
LOG = logging.getLogger(__name__)


class JitModelAnalysis:
    """Sums the results of handles over the operators of one forward call; runs the model at the first question.

    Args:
        model: A module; DDP, DataParallel and compiled ones are looked into.
        inputs: A tensor, a tuple of positional arguments, or a mapping of keyword arguments.
        kwargs: More keyword arguments.

    Raises:
        UsageError: It is no module.
        Exception: What the model raises, at the first question.
    """

    def __init__(self, model: nn.Module, inputs: Any = (), kwargs: Mapping[str, Any] | None = None) -> None:
        self._settings = Settings()
        self._prepare(ModelCall(model=_original(model), inputs=inputs, kwargs=dict(kwargs or {})))

    def _prepare(self, call: ModelCall) -> None:
        self._call, self._names = call, ModuleNames(call.model)
        self._found: ModuleSums | None = None

    @property
    def model(self) -> nn.Module:
        """The model that is analysed; of a compiled one, the original."""
        return self._call.model

    def total(self, module_name: str = "") -> int:
        """Sum over all operators inside a module."""
        return sum(self.by_operator(module_name).values())

    def by_operator(self, module_name: str = "") -> Counter[str]:
        """Sums inside a module by operator."""
        return self._sums().counted[self._names.canonical(module_name)]

    def by_module(self) -> Counter[str]:
        """Sums by module, submodules included; '' is the model."""
        return Counter({name: sum(amounts.values()) for name, amounts in self._sums().counted.items()})

    def by_module_and_operator(self) -> dict[str, Counter[str]]:
        """Sums by module, submodules included, and operator."""
        return self._sums().counted

    def unsupported_ops(self, module_name: str = "") -> Counter[str]:
        """Calls of operators inside a module that have no handle and are not ignored."""
        return self._sums().unsupported[self._names.canonical(module_name)]

    def uncalled_modules(self) -> set[str]:
        """Modules in which nothing ran: never called, called by another method than `forward`, or empty."""
        return self._sums().untouched

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
        pairs = iter(args)
        return self._set(self._settings.with_handles(dict(zip(pairs, pairs, strict=True)) | kwargs))

    def clear_op_handles(self) -> Self:
        """Forgets all handles and what was to be ignored, the defaults of the class as well."""
        return self._set(replace(self._settings, handles={}, free=Settings().free))

    def canonical_module_name(self, name: str) -> str:
        """The name under which results have a module: the first of its names where it is shared.

        Raises:
            KeyError: The model has no such module.
        """
        return self._names.canonical(name)

    def copy(self, new_model: nn.Module | None = None, new_inputs: Any = None) -> Self:
        """The same settings for another model or other inputs."""
        twin = copy.copy(self)
        changes = {"model": None if new_model is None else _original(new_model), "inputs": new_inputs}
        twin._prepare(replace(self._call, **{name: new for name, new in changes.items() if new is not None}))
        return twin

    def tracer_warnings(self, mode: str) -> Self:
        """Warnings while the model runs: 'all', 'no_tracer_warning' (torch.jit.TracerWarning is hidden) or 'none'."""
        self._settings = self._settings.with_choice("warnings", mode)
        return self

    def ancestor_mode(self, mode: str) -> Self:
        """Whose an operator is: of the innermost module and its 'owner's, or of every 'caller' that is running."""
        return self._set(self._settings.with_choice("ancestors", mode))

    def unsupported_ops_warnings(self, enabled: bool) -> Self:  # noqa: FBT001 (fvcore's signature)
        """Whether the log names operators without a handle."""
        self._settings = replace(self._settings, logs_unsupported=enabled)
        return self

    def uncalled_modules_warnings(self, enabled: bool) -> Self:  # noqa: FBT001 (fvcore's signature)
        """Whether the log names modules in which nothing ran."""
        self._settings = replace(self._settings, logs_uncalled=enabled)
        return self

    def quiet(self) -> Self:
        """Warns of nothing from now on, as while text is made of it."""
        self._settings = replace(self._settings, warnings="none", logs_unsupported=False, logs_uncalled=False)
        return self

    def _set(self, settings: Settings) -> Self:
        """Takes settings that change the sums."""
        self._settings, self._found = settings, None
        return self

    def _sums(self) -> ModuleSums:
        if self._found is None:
            self._found = sum_by_module(self._call.counts(self._settings.warnings), self._names, self._settings)
            self._log(self._found)
        return self._found

    def _log(self, sums: ModuleSums) -> None:
        if self._settings.logs_unsupported:
            for kind, calls in sums.unsupported[""].items():
                LOG.warning("no rule for operator %s, called %d times: not counted", kind, calls)
        silent = sorted(name for name in sums.untouched
                        if getattr(type(self._names.modules[name]), "forward", None) not in FORWARDLESS)
        if self._settings.logs_uncalled and silent:
            LOG.warning("nothing ran in these modules; what other methods than forward did is counted for the modules "
                        "above them: %s", ", ".join(silent))


def _original(model: nn.Module) -> nn.Module:
    """The module that torch.compile was given; any other module as it is."""
    if not isinstance(model, nn.Module):
        raise UsageError(f"expected a torch.nn.Module, found {type(model).__name__}")
    inner: nn.Module = getattr(model, "_orig_mod", model) if type(model).__name__ == "OptimizedModule" else model
    return inner
