"""Sums over the operators inside each module."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Number
from typing import Any

import numpy as np

from distprof.compat.fvcore.module_names import ModuleNames
from distprof.compat.fvcore.settings import Settings
from distprof.counting.counts import Counts
from distprof.peers.fvcore import by_name
from distprof.peers.traced_ops import TracedOp, traced_ops


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleSums:
    """Results by the first name of each module, submodules included."""

    counted: dict[str, Counter[str]]
    """Sums of what handles returned, by operator."""
    unsupported: dict[str, Counter[str]]
    """Calls of operators that have no handle and are not free."""
    untouched: set[str]
    """Modules in which nothing ran."""


def sum_by_module(counts: Counts, names: ModuleNames, settings: Settings) -> ModuleSums:
    """Asks the handles about every operator of a call.

    Raises:
        ValueError: A handle returned no number, or one of a type that may overflow.
    """
    sums = ModuleSums(counted={name: Counter() for name in names}, unsupported={name: Counter() for name in names},
                      untouched=set(names))
    for op in traced_ops(counts.functions, settings.handles.__contains__):
        callers, owners = names.callers(op.path), names.owners(op.path)
        inside = owners if settings.ancestors == "owner" else callers
        sums.untouched.difference_update(callers, inside)
        if op.kind in settings.handles:
            for _ in range(op.calls):
                _add(_handled(op, settings), inside, sums.counted)
        elif op.kind not in settings.free:
            _add(Counter({op.kind: op.calls}), inside, sums.unsupported)
    for scripted in counts.ops:
        if scripted.phase == "forward" and scripted.macs and not scripted.functions:
            _add(Counter({scripted.op: scripted.calls}), (scripted.within | {""}) & sums.unsupported.keys(),
                 sums.unsupported)
    return sums


def _add(amounts: Counter[str], modules: Iterable[str], sums: dict[str, Counter[str]]) -> None:
    for name in modules:
        sums[name] += amounts


def _handled(op: TracedOp, settings: Settings) -> Counter[str]:
    amounts = by_name(op, settings.handles[op.kind](list(op.inputs), list(op.outputs)))
    values: list[Any] = list(amounts.values())
    for value in values:
        if not isinstance(value, (int, float, np.int64, np.float64)):
            what = "a type that may overflow" if isinstance(value, Number) else "no number"
            raise ValueError(f"expected int, float, int64 or float64 from the handle of {op.kind}, "
                             f"found {type(value).__name__}, {what}")
    return amounts
