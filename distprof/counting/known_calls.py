"""What is kept of operators and of their calls: layers repeat the same ones, and to look at one again takes time."""

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
"""Calls that are kept; then all are forgotten. Shapes that differ from step to step would fill the memory."""
NOT_WORK = ("prim::", "profiler::", "c10d::", "_c10d_functional::")
"""Queries about tensors, labels, and communication, which has its own table."""
Shapes = tuple[tuple[int, ...], ...]
_numbers = attrgetter(*(field.name for field in fields(Cost)))


class Operator(NamedTuple):
    """What is the same for all calls of an operator."""

    func: Any
    name: str
    is_work: bool
    has_parts: bool
    """True where the calls of other operators inside it may have to be counted in its place."""
    follows_from_shapes: bool
    """True where equal calls have equal costs."""
    computes: bool = True
    """False where it only makes a view, or memory that nothing is in."""


@dataclass(frozen=True, slots=True, eq=False)
class KnownCall:
    """What is counted of a call; one object for all calls of which the same is counted."""

    op: str
    shapes: str
    """Of the input tensors, as JSON."""
    dtype: str | None
    """Element type of the first tensor input, or of the output if there is none."""
    cost: Cost
    """It must not be changed."""


class KnownCalls:
    """Operators and calls since it was made; formulas that are registered later are not used."""

    def __init__(self) -> None:
        self.operators: dict[int, Operator] = {}
        """By id, those that were asked for."""
        self._calls: dict[Hashable, KnownCall] = {}

    def operator(self, func: object, kwargs: dict[str, Any]) -> Operator:
        """An operator; a Triton kernel is found by the `kwargs` of its launch."""
        known = self.operators.get(id(func))
        if known is None:
            name = formulas.name_of(func)
            known = Operator(func, name, not name.startswith(NOT_WORK), _has_parts(func, kwargs),
                             formulas.follows_from_shapes(func), not _is_view(func))
            if isinstance(func, torch._ops.OpOverload):
                self.operators[id(func)] = known  # which keeps it alive, so that its id stays its own
        return known

    def call(self, operator: Operator, args: Sequence[Any], kwargs: dict[str, Any], output: object) -> KnownCall:
        """A call that has returned.

        Raises:
            FormulaError: A formula of a user raised or did not return an int >= 0.
        """
        key = call_key(operator.func, args, kwargs, output) if operator.follows_from_shapes else None
        try:
            known = self._calls.get(key) if key is not None else None
        except TypeError:  # a size is not known yet
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
        """What is counted of a call, given as the fields of it."""
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
    """Shapes as JSON."""
    return _as_json(tuple(map(_shape, inputs)))


def shapes_of(tree: object) -> Shapes:
    """Shapes of the tensors in nested containers."""
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
