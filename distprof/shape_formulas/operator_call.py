"""One call of an operator: its arguments by schema name, however they were passed, its output, element types and cost.

The cost is MACs, element counts and bytes, never added up. A multiply-accumulate of complex numbers is four real ones,
8 FLOPs, by the definition of the product; how many a kernel needs is not looked at. Several elements may be packed in a
byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

OperatorKind = Literal[
    "contraction", "norm", "activation", "pool", "softmax", "loss", "optimizer", "elementwise", "reduction",
    "upsample", "embedding", "random", "copy", "view", "estimate", "other",
]
"""What an operator does. `reduction` includes scans and sorts; `view` neither computes nor moves data (allocation
too); `estimate` has FLOPs that are only roughly known; `other` is not classified."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Macs:
    """Multiply-accumulates of one contraction."""

    full: int
    causal: int
    """Without the (query, key) pairs that a causal mask or a window hides; `full` where there is neither."""
    recompute: int = 0
    """Part of `full`: scores that a fused attention backward recomputes."""
    note: str = ""
    """Why the count is an upper bound, or what it is based on besides the shapes."""

    def times(self, factor: Fraction, note: str) -> Macs:
        """So many times as many; what is left over is dropped."""
        return Macs(full=int(self.full * factor), causal=int(self.causal * factor),
                    recompute=int(self.recompute * factor), note=self.note or note)

    @classmethod
    def of(cls, macs: int | Macs) -> Macs:
        """Wraps a plain number, which no mask reduces."""
        return macs if isinstance(macs, Macs) else cls(full=macs, causal=macs)


@dataclass(slots=True, kw_only=True)
class Cost:
    """One call of an operator on the shapes of this rank, or the sum of several."""

    calls: int = 1
    macs: int = 0
    """Multiply-accumulates of contractions: matrix products, convolutions, attention, recurrent layers. Positions
    that an attention mask hides count in full."""
    causal_macs: int = 0
    """The same without the (query, key) pairs that causal attention and its window hide."""
    recompute_macs: int = 0
    """Part of `macs`: scores that a fused attention backward recomputes (1 of its 5 products)."""
    remainder: int = 0
    """FLOPs that 2 x MACs cannot express: 1 if a registered formula returned an odd number."""
    elements: int = 0
    """Elements that a call other than a contraction works on; `formulas/dispatched_call.py` selects the tensors."""
    kind: OperatorKind = "other"
    read_bytes: int = 0
    """Bytes read: each input once, broadcast dimensions once, only the gathered rows of a table."""
    write_bytes: int = 0
    """Bytes written: new tensors and inputs changed in place. 0 for views."""
    counted: bool = False
    """True if `macs` come from a formula or the operator is known to be no contraction."""
    estimate_flops: int = 0
    """Rough FLOPs of an FFT, a factorisation or a distance; never part of `flops`."""
    note: str = ""
    """What the count is based on besides the shapes."""

    @property
    def flops(self) -> int:
        """2 per multiply-accumulate of a contraction; nothing else counts."""
        return 2 * self.macs + self.remainder

    @property
    def io_bytes(self) -> int:
        return self.read_bytes + self.write_bytes

    def add(self, other: Cost, times: int = 1) -> None:
        self.calls += times * other.calls  # name by name: this runs often
        self.macs += times * other.macs
        self.remainder += times * other.remainder
        self.causal_macs += times * other.causal_macs
        self.recompute_macs += times * other.recompute_macs
        self.elements += times * other.elements
        self.estimate_flops += times * other.estimate_flops
        self.read_bytes += times * other.read_bytes
        self.write_bytes += times * other.write_bytes
        self.kind, self.counted, self.note = other.kind, other.counted, other.note


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
