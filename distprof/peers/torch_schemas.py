"""Arguments of torch functions in the order that the schema of their operator has."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from distprof.counting.torch_functions import FunctionCall, TensorSpec


@cache
def schemas(kind: str) -> tuple[Any, ...]:
    """Schemas of an operator that a call from Python can have; empty where there is no such operator."""
    found = torch._C._jit_get_schemas_for_operator(kind)
    return tuple(schema for schema in found if not any(argument.is_out for argument in schema.arguments))


def arguments_of(kind: str, call: FunctionCall) -> list[Any]:
    """All arguments of a call in the order of the operator's schema; as they were passed where none fits."""
    for schema in schemas(kind):
        bound = _bind(schema.arguments, call)
        if bound is not None:
            return bound
    return [*call.args, *(value for _, value in call.kwargs)]


def _bind(wanted: list[Any], call: FunctionCall) -> list[Any] | None:
    """Arguments of a call in the order of a schema, defaults filled in; None where they do not fit."""
    by_name, given, bound = dict(call.kwargs), list(call.args), []
    for position, argument in enumerate(wanted):
        kind = str(argument.type)
        if given and not argument.kwarg_only:
            value = given.pop(0)
            rest = position + 1 == len([other for other in wanted if not other.kwarg_only])
            if given and rest and _is_member(kind, value):
                value, given = (value, *given), []  # x.view(2, 3), torch.einsum("ij,jk", a, b)
        elif argument.name in by_name:
            value = by_name.pop(argument.name)
        elif argument.has_default_value():
            value = argument.default_value
        else:
            return None
        if not _fits(kind, value):
            return None
        bound.append(tuple(value) if isinstance(value, list) else value)
    return bound if not given and not by_name else None


def _is_member(kind: str, value: Any) -> bool:
    """True for a value that Python functions take as one of several where the operator wants a list."""
    return isinstance(value, {"List[int]": int, "List[Tensor]": TensorSpec}.get(kind, ()))


def _fits(kind: str, value: Any) -> bool:
    inner = kind.removeprefix("Optional[").removesuffix("]") if kind.startswith("Optional[") else kind
    if value is None:
        return inner is not kind
    if inner == "Tensor":
        return isinstance(value, TensorSpec)
    if inner.startswith("List[Tensor"):
        return isinstance(value, tuple) and all(isinstance(part, TensorSpec) for part in value)
    if inner == "str" or inner == "List[int]":
        return isinstance(value, str) == (inner == "str")
    return not isinstance(value, TensorSpec)
