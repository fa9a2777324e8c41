"""One call of an operator: its arguments by schema name, however they were passed, its output, and its element types.

A multiply-accumulate of complex numbers is four real ones, 8 FLOPs, by the definition of the product; how many a kernel
needs is not looked at. Several elements may be packed in a byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from distprof.shape_formulas.operator_cost import Macs


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """Arguments and output of one call."""

    arguments: dict[str, Any]
    output: Any

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    @property
    def first_output(self) -> Any:
        """The output, or the first of several."""
        return self.output[0] if isinstance(self.output, (tuple, list)) else self.output


Formula = Callable[[OperatorCall], int]
"""Returns the MACs of one call."""
MacsFormula = Callable[[OperatorCall], int | Macs]
"""The same, with `Macs` where a mask or recomputation matters."""


TWO_IN_ONE = ("float4_e2m1fn_x2",)
"""Types of which each element is two numbers, as PyTorch and its traces have them, in small letters."""
SPLIT = frozenset({"aten::convolution", "aten::convolution_backward", "aten::convolution_overrideable",
                   "aten::convolution_backward_overrideable"})
"""torch runs a complex one as three real ones: of the real parts, of the imaginary parts, and of the sums of both."""
OF_COMPLEX = "complex numbers: 8 FLOPs per multiply-accumulate"
PART_OF_COMPLEX = "one of three real products of a complex one, which has 8 FLOPs per multiply-accumulate"


def numbers_in(tensor: Any) -> int:
    """Elements of a tensor, each of them one number."""
    return int(tensor.numel()) * numbers_an_element(tensor)


def numbers_an_element(tensor: Any) -> int:
    """2 for types that hold two numbers in a byte."""
    return 2 if str(tensor.dtype).lower().endswith(TWO_IN_ONE) else 1


def real_share(op: str, arguments: dict[str, Any]) -> tuple[Fraction, str]:
    """By what the products of shapes have to be multiplied for complex numbers, and why.

    The first two of the three real convolutions get a half more: together that is four times one.
    """
    if any("complex" in str(one.dtype) for one in _tensors(arguments.values())):
        return Fraction(4), OF_COMPLEX
    if op in SPLIT and _is_part_of_complex(arguments["weight"]):
        return Fraction(3, 2), PART_OF_COMPLEX
    return Fraction(1), ""


def _tensors(values: Iterable[Any]) -> Iterable[Any]:
    for value in values:
        if hasattr(value, "dtype"):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _tensors(value)


def _is_part_of_complex(weight: Any) -> bool:
    """True for the real or the imaginary part of a tensor: each second number of all there are."""
    base = getattr(weight, "_base", None)
    if base is not None:
        return "complex" in str(base.dtype)
    if not hasattr(weight, "untyped_storage"):  # of a trace
        return False
    strides = [stride for size, stride in zip(weight.shape, weight.stride(), strict=True) if size > 1]
    return (all(stride % 2 == 0 for stride in strides)
            and weight.untyped_storage().nbytes() == 2 * weight.numel() * weight.element_size())
