"""Sums over the operators inside each module of a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from numbers import Number
from typing import Any

import numpy as np
from torch import nn

from distprof.counting.count import Counts
from distprof.model.call_paths import CallPath
from distprof.model.modules import is_wrapper
from distprof.peers.fvcore import by_name
from distprof.peers.traced_ops import TracedOp, traced_ops

Handle = Callable[[list[Any], list[Any]], Any]
"""Inputs and outputs of an operator -> a number, or a Counter of numbers by name."""


class ModuleNames:
    """All names of all modules of a model; results use the first name of a module with several."""

    def __init__(self, model: nn.Module) -> None:
        self.modules: dict[str, nn.Module] = dict(model.named_modules(remove_duplicate=False))
        """Name -> module, for all names; '' is the model."""
        self.first: dict[nn.Module, str] = {}
        """Module -> its first name; modules precede their submodules."""
        for name, module in self.modules.items():
            self.first.setdefault(module, name)

    def canonical(self, name: str) -> str:
        """Returns the first name of the module with this name.

        Raises:
            KeyError: The model has no such module.
        """
        if name not in self.modules:
            raise KeyError(f"{type(self.modules['']).__name__} has no module named {name!r}")
        return self.first[self.modules[name]]

    def callers(self, path: CallPath) -> set[str]:
        """Returns the running modules, including wrappers around them."""
        found = {""}
        for module in _running(path):
            name = self.first.get(module)
            while name:
                found.add(name)
                above = name.rpartition(".")[0]
                name = above if is_wrapper(self.modules[above]) else None
        return found

    def owners(self, path: CallPath) -> set[str]:
        """Returns the innermost running module of the model, and those that contain it by name."""
        innermost = next((self.first[module] for module in _running(path) if module in self.first), "")
        return set(name_and_holders(innermost))


def _running(path: CallPath) -> Iterator[nn.Module]:
    """Returns the running modules, innermost first."""
    modules = (inner.site.module() for inner in path.outward() if inner.site is not None)
    return (module for module in modules if module is not None)


def name_and_holders(name: str) -> list[str]:
    """Returns the names of all containers of a module or parameter, the model ('') first, then its own: '', a, a.b for
    a.b."""
    parts = name.split(".") if name else []
    return [".".join(parts[:length]) for length in range(len(parts) + 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleSums:
    """Results by the first name of each module, including submodules."""

    counted: dict[str, Counter[str]]
    """Sums of the results of handles, by operator."""
    unsupported: dict[str, Counter[str]]
    """Numbers of calls of operators that have no handle and are not free."""
    untouched: set[str]
    """Modules in which nothing ran."""


def sum_by_module(counts: Counts, names: ModuleNames, handles: Mapping[str, Handle], free: Collection[str],
                  ancestors: str) -> ModuleSums:
    """Calls the handles for every operator of a call, and sums up the results.

    Args:
        counts: The counted call.
        names: Names of the modules of the model.
        handles: Operator -> its handle.
        free: Operators that need no handle.
        ancestors: An operator counts for the innermost module and its 'owner's, or for every running 'caller'.

    Raises:
        ValueError: A handle returned something other than a number, or a number of a type that may overflow.
    """
    first = list(names.first.values())
    sums = ModuleSums(counted={name: Counter() for name in first}, unsupported={name: Counter() for name in first},
                      untouched=set(first))
    for op in traced_ops(Counter(counts.functions) - Counter(counts.unused), handles.__contains__):
        callers, owners = names.callers(op.path), names.owners(op.path)
        inside = owners if ancestors == "owner" else callers
        sums.untouched.difference_update(callers, inside)
        if op.kind in handles:
            for _ in range(op.calls):
                _add(_handled(op, handles[op.kind]), inside, sums.counted)
        elif op.kind not in free:
            _add(Counter({op.kind: op.calls}), inside, sums.unsupported)
    for scripted in counts.ops:
        if scripted.phase == "forward" and scripted.macs and not scripted.functions:
            _add(Counter({scripted.op: scripted.calls}), (scripted.within | {""}) & sums.unsupported.keys(),
                 sums.unsupported)
    return sums


def _add(amounts: Counter[str], modules: Iterable[str], sums: dict[str, Counter[str]]) -> None:
    for name in modules:
        sums[name] += amounts


def _handled(op: TracedOp, handle: Handle) -> Counter[str]:
    amounts = by_name(op, handle(list(op.inputs), list(op.outputs)))
    values: list[Any] = list(amounts.values())
    for value in values:
        if not isinstance(value, (int, float, np.int64, np.float64)):
            what = "which may overflow" if isinstance(value, Number) else "which is not a number"
            raise ValueError(f"the handle of {op.kind} must return int, float, int64 or float64, not "
                             f"{type(value).__name__}, {what}")
    return amounts
