"""Arguments as code for torch.jit graphs expects them: recorded arguments come in, values with types go out.

Counting rules of fvcore are functions of `torch._C.Value` lists. These objects answer the same questions from our
record: a shape, a constant, the members of a list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from distprof.counting.functions import Spec


@dataclass(frozen=True, slots=True)
class ValueType:
    """What `Value.type()` gives."""

    spec: Any

    def sizes(self) -> list[int] | None:
        """Shape of a tensor; None for anything else."""
        return list(self.spec.shape) if isinstance(self.spec, Spec) else None

    def dim(self) -> int | None:
        """Number of dimensions of a tensor; None for anything else."""
        return len(self.spec.shape) if isinstance(self.spec, Spec) else None

    def scalarType(self) -> str | None:
        """Element type of a tensor as torch.jit spells it, like Float or Long."""
        return _SCALAR_TYPES.get(self.spec.dtype, self.spec.dtype) if isinstance(self.spec, Spec) else None

    def kind(self) -> str:
        """TensorType, ListType, NoneType, IntType, FloatType, BoolType or StringType."""
        if isinstance(self.spec, Spec):
            return "TensorType"
        return _KINDS.get(type(self.spec), "AnyType")


@dataclass(frozen=True, slots=True)
class ValueNode:
    """What `Value.node()` gives: where a value comes from."""

    spec: Any

    def inputs(self) -> list[Value]:
        """Members of a list; nothing for anything else."""
        is_list = isinstance(self.spec, tuple) and not isinstance(self.spec, Spec)
        return [Value(part) for part in self.spec] if is_list else []

    def kind(self) -> str:
        """prim::ListConstruct for a list, prim::Constant for a constant, prim::Param for a tensor."""
        if isinstance(self.spec, Spec):
            return "prim::Param"
        return "prim::ListConstruct" if isinstance(self.spec, tuple) else "prim::Constant"


@dataclass(frozen=True, slots=True)
class Value:
    """One argument or result of an operator."""

    spec: Any
    """A `Spec` for a tensor, a tuple for a list, otherwise the value itself."""

    def isCompleteTensor(self) -> bool:
        """True for a tensor: its shape is known."""
        return isinstance(self.spec, Spec)

    def type(self) -> ValueType:
        """Kind, shape and element type."""
        return ValueType(self.spec)

    def toIValue(self) -> Any:
        """The value of a constant; None for a tensor."""
        if isinstance(self.spec, Spec):
            return None
        return list(self.spec) if isinstance(self.spec, tuple) else self.spec

    def node(self) -> ValueNode:
        """Where it comes from."""
        return ValueNode(self.spec)


def shape_of(value: Value) -> list[int] | None:
    """Shape of a tensor; None for anything else. `get_shape` of fvcore works as well."""
    return value.type().sizes()


_KINDS: dict[Any, str] = {tuple: "ListType", type(None): "NoneType", bool: "BoolType", int: "IntType",
                          float: "FloatType", str: "StringType"}
_SCALAR_TYPES = {"float32": "Float", "float64": "Double", "float16": "Half", "bfloat16": "BFloat16", "int64": "Long",
                 "int32": "Int", "int16": "Short", "int8": "Char", "uint8": "Byte", "bool": "Bool",
                 "complex64": "ComplexFloat", "complex128": "ComplexDouble"}
