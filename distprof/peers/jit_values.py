"""Recorded arguments with the interface of `torch._C.Value`.

Counting rules of fvcore are functions of lists of such values. These have the methods that rules use: for shapes,
constants and members of lists.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from distprof.counting.torch_functions import TensorSpec


@dataclass(frozen=True, slots=True)
class JitType:
    """Kind, shape and element type of a value."""

    spec: Any

    def sizes(self) -> list[int] | None:
        """Shape of a tensor; None for anything else."""
        return list(self.spec.shape) if isinstance(self.spec, TensorSpec) else None

    def dim(self) -> int | None:
        """Number of dimensions of a tensor; None for anything else."""
        return len(self.spec.shape) if isinstance(self.spec, TensorSpec) else None

    def scalarType(self) -> str | None:
        """Element type of a tensor as torch.jit spells it, like Float or Long."""
        return _SCALAR_TYPES.get(self.spec.dtype, self.spec.dtype) if isinstance(self.spec, TensorSpec) else None

    def kind(self) -> str:
        """TensorType, ListType, NoneType, IntType, FloatType, BoolType or StringType."""
        return _KINDS.get(type(self.spec), "AnyType")


@dataclass(frozen=True, slots=True)
class JitValue:
    """One argument or result of an operator."""

    spec: Any
    """A `TensorSpec` for a tensor, a tuple for a list, otherwise the value itself."""

    def isCompleteTensor(self) -> bool:
        """True for a tensor: its shape is known."""
        return isinstance(self.spec, TensorSpec)

    def type(self) -> JitType:
        """Kind, shape and element type."""
        return JitType(self.spec)

    def toIValue(self) -> Any:
        """The value of a constant; None for a tensor."""
        if isinstance(self.spec, TensorSpec):
            return None
        return list(self.spec) if isinstance(self.spec, tuple) else self.spec

    def node(self) -> JitValue:
        """Where it comes from: nothing is known but the value, which has the methods of a node as well."""
        return self

    def inputs(self) -> list[JitValue]:
        """Members of a list; nothing for anything else."""
        is_list = isinstance(self.spec, tuple) and not isinstance(self.spec, TensorSpec)
        return [JitValue(part) for part in self.spec] if is_list else []

    def kind(self) -> str:
        """prim::ListConstruct for a list, prim::Constant for a constant, prim::Param for a tensor."""
        if isinstance(self.spec, TensorSpec):
            return "prim::Param"
        return "prim::ListConstruct" if isinstance(self.spec, tuple) else "prim::Constant"


def get_shape(value: JitValue) -> list[int] | None:
    """Shape of a value that a handle gets; None where it is no tensor."""
    return value.type().sizes()


_KINDS: dict[Any, str] = {TensorSpec: "TensorType", tuple: "ListType", type(None): "NoneType", bool: "BoolType",
                          int: "IntType", float: "FloatType", str: "StringType"}
_SCALAR_TYPES = {"float32": "Float", "float64": "Double", "float16": "Half", "bfloat16": "BFloat16", "int64": "Long",
                 "int32": "Int", "int16": "Short", "int8": "Char", "uint8": "Byte", "bool": "Bool",
                 "complex64": "ComplexFloat", "complex128": "ComplexDouble"}
