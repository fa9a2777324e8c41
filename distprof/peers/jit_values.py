"""Recorded arguments of torch functions, in the order of the operator's schema, as values like `torch._C.Value`.

Counting rules of fvcore are functions of lists of `torch._C.Value`. `JitValue` has the methods that rules use: for
shapes, constants and members of lists.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from distprof.counting.torch_functions import FunctionCall, TensorSpec


@dataclass(frozen=True, slots=True)
class JitType:
    """Kind, shape and element type of a value."""

    spec: Any

    def sizes(self) -> list[int] | None:
        """Returns the shape of a tensor; None for anything else."""
        return list(self.spec.shape) if isinstance(self.spec, TensorSpec) else None

    def dim(self) -> int | None:
        """Returns the number of dimensions of a tensor; None for anything else."""
        return len(self.spec.shape) if isinstance(self.spec, TensorSpec) else None

    def scalarType(self) -> str | None:
        """Returns the element type of a tensor as in torch.jit, like Float or Long; None for anything else."""
        return _SCALAR_TYPES.get(self.spec.dtype, self.spec.dtype) if isinstance(self.spec, TensorSpec) else None

    def kind(self) -> str:
        """Returns TensorType, ListType, NoneType, IntType, FloatType, BoolType or StringType; AnyType for anything
        else."""
        return _KINDS.get(type(self.spec), "AnyType")


@dataclass(frozen=True, slots=True)
class JitValue:
    """One argument or result of an operator."""

    spec: Any
    """A `TensorSpec` for a tensor, a tuple for a list, otherwise the value itself."""

    def isCompleteTensor(self) -> bool:
        """Returns whether it is a tensor, whose shape is always known."""
        return isinstance(self.spec, TensorSpec)

    def type(self) -> JitType:
        """Returns kind, shape and element type."""
        return JitType(self.spec)

    def toIValue(self) -> Any:
        """Returns the value of a constant; None for a tensor."""
        if isinstance(self.spec, TensorSpec):
            return None
        return list(self.spec) if isinstance(self.spec, tuple) else self.spec

    def node(self) -> JitValue:
        """Returns the value itself, which also has the methods of a node, as its origin is unknown."""
        return self

    def inputs(self) -> list[JitValue]:
        """Returns the members of a list; an empty list for anything else."""
        is_list = isinstance(self.spec, tuple) and not isinstance(self.spec, TensorSpec)
        return [JitValue(part) for part in self.spec] if is_list else []

    def kind(self) -> str:
        """Returns prim::ListConstruct for a list, prim::Constant for a constant, prim::Param for a tensor."""
        if isinstance(self.spec, TensorSpec):
            return "prim::Param"
        return "prim::ListConstruct" if isinstance(self.spec, tuple) else "prim::Constant"


def get_shape(value: JitValue) -> list[int] | None:
    """Returns the shape of a value; None if it is not a tensor."""
    return value.type().sizes()


_KINDS: dict[Any, str] = {TensorSpec: "TensorType", tuple: "ListType", type(None): "NoneType", bool: "BoolType",
                          int: "IntType", float: "FloatType", str: "StringType"}
_SCALAR_TYPES = {"float32": "Float", "float64": "Double", "float16": "Half", "bfloat16": "BFloat16", "int64": "Long",
                 "int32": "Int", "int16": "Short", "int8": "Char", "uint8": "Byte", "bool": "Bool",
                 "complex64": "ComplexFloat", "complex128": "ComplexDouble"}


@cache
def schemas(kind: str) -> tuple[Any, ...]:
    """Returns the schemas of an operator, excluding out variants; empty if there is no such operator."""
    found = torch._C._jit_get_schemas_for_operator(kind)
    return tuple(schema for schema in found if not any(argument.is_out for argument in schema.arguments))


def arguments_of(kind: str, call: FunctionCall) -> list[Any]:
    """Returns all arguments of a call in the order of the operator's schema, or as they were passed if no schema
    fits."""
    for schema in schemas(kind):
        bound = _bind(schema.arguments, call)
        if bound is not None:
            return bound
    return [*call.args, *(value for _, value in call.kwargs)]


def _bind(wanted: list[Any], call: FunctionCall) -> list[Any] | None:
    """Returns the arguments of a call in the order of a schema, including defaults; None if they do not fit."""
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


def _is_member(kind: str, value: object) -> bool:
    """Returns whether a value may be the first of several that Python functions accept in place of the operator's
    list."""
    return isinstance(value, {"List[int]": int, "List[Tensor]": TensorSpec}.get(kind, ()))


def _fits(kind: str, value: object) -> bool:
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
