"""Caches of operators and of the costs of their calls: layers repeat the same calls, and analysing them is slow."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch.nn.parameter import is_lazy

from distprof import formulas
from distprof.formulas.composite_operators import is_whole
from distprof.formulas.dispatched_call import call_key, kind_without_formula
from distprof.model.tensors import dtype_name, tensors
from distprof.shape_formulas.operator_call import Cost

MOST_CALLS = 1 << 14
"""Maximum number of cached calls, after which all are dropped: shapes that change from step to step would fill the
memory."""
NOT_WORK = ("prim::", "profiler::", "c10d::", "_c10d_functional::")
"""Prefixes of operators that are not counted: queries about tensors, labels, and communication, which has its own
table."""
Shapes = tuple[tuple[int, ...], ...]
_numbers = attrgetter(*(field.name for field in fields(Cost)))


class Operator(NamedTuple):
    """Properties that all calls of an operator share."""

    func: Any
    name: str
    is_work: bool
    has_parts: bool
    """True if calls of other operators inside it may have to be counted instead of it."""
    follows_from_shapes: bool
    """True if calls with equal `call_key` have equal costs."""
    computes: bool = True
    """False if it only creates a view or uninitialised memory."""


@dataclass(frozen=True, slots=True, eq=False)
class KnownCall:
    """What is counted for a call; one object for all calls with the same counts."""

    op: str
    shapes: str
    """Shapes of the input tensors, as a JSON list."""
    dtype: str | None
    """Element type of the first tensor input, or of the output if there is none."""
    cost: Cost
    """Shared: must not be changed."""


class KnownCalls:
    """Caches operators and calls; formulas registered after its creation are not used."""

    def __init__(self) -> None:
        self.operators: dict[int, Operator] = {}
        """id of an operator -> its properties."""
        self._calls: dict[Hashable, KnownCall] = {}

    def operator(self, func: object, kwargs: dict[str, Any]) -> Operator:
        """Returns the properties of an operator; a Triton kernel is identified by the `kwargs` of its launch."""
        known = self.operators.get(id(func))
        if known is None:
            name = formulas.name_of(func)
            known = Operator(func, name, not name.startswith(NOT_WORK), _has_parts(func, kwargs),
                             formulas.follows_from_shapes(func), not _is_view(func))
            if isinstance(func, torch._ops.OpOverload):
                self.operators[id(func)] = known  # keeps it alive, so that its id stays valid
        return known

    def call(self, operator: Operator, args: Sequence[Any], kwargs: dict[str, Any], output: object) -> KnownCall:
        """Returns the counts of a call that has returned.

        Raises:
            FormulaError: A formula of a user raised or did not return an int >= 0.
        """
        key = call_key(operator.func, args, kwargs, output) if operator.follows_from_shapes else None
        try:
            known = self._calls.get(key) if key is not None else None
        except TypeError:  # a size is still unknown
            key = known = None
        if known is None:
            inputs = tensors((args, kwargs))
            typed = next(iter(inputs or tensors(output)), None)
            dtype = dtype_name(typed.dtype) if typed is not None else None
            cost = formulas.cost(operator.func, args, kwargs, output)
            known = self.of(operator.name, shapes_text(inputs), dtype, cost)
            if key is not None:
                self._keep(key, known)
        return known

    def of(self, op: str, shapes: str, dtype: str | None, cost: Cost) -> KnownCall:
        """Returns the object for these counts."""
        key = op, shapes, dtype, _numbers(cost)
        found = self._calls.get(key)
        if found is None:
            found = KnownCall(op, shapes, dtype, cost)
            self._keep(key, found)
        return found

    def _keep(self, key: Hashable, call: KnownCall) -> None:
        if len(self._calls) >= MOST_CALLS:
            self._calls.clear()
        self._calls[key] = call


def _is_view(func: object) -> bool:
    return kind_without_formula(func) == "view"


def _has_parts(func: object, kwargs: dict[str, Any]) -> bool:
    return not (formulas.has_formula(func, kwargs) or is_whole(func))  # whole in inference mode


def shapes_text(inputs: Iterable[torch.Tensor]) -> str:
    """Returns the shapes of tensors as a JSON list."""
    return _as_json(tuple(map(_shape, inputs)))


def shapes_of(tree: object) -> Shapes:
    """Returns the shapes of the tensors in nested containers."""
    return tuple(_shape(tensor) for tensor in tensors(tree))


@lru_cache(maxsize=1 << 14)
def _as_json(shapes: Shapes) -> str:
    return json.dumps(shapes)


def _shape(tensor: torch.Tensor) -> tuple[int, ...]:
    if type(tensor) is torch.Tensor and not tensor.is_nested:
        return tuple(tensor.shape)
    if is_lazy(tensor):
        return ()  # a lazy parameter has no shape yet
    # the parts of a nested tensor differ in shape
    return (len(tensor.unbind()),) if tensor.is_nested else tuple(tensor.shape)
