"""One call of an operator: its arguments by schema name, its output, element types and cost.

The cost consists of MACs, element counts and bytes, which are never added to each other. A multiply-accumulate of
complex numbers counts as four real ones, 8 FLOPs, by the definition of the product, however many a kernel needs. A byte
may contain several elements.
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
"""What an operator does. `reduction` includes scans and sorts; `view` neither computes nor moves data (including
allocation); FLOPs of `estimate` are only roughly known; `other` is unclassified."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Macs:
    """Multiply-accumulates of one contraction."""

    full: int
    causal: int
    """Excluding (query, key) pairs that a causal mask or a window hides; equals `full` if there is neither."""
    recompute: int = 0
    """Part of `full`: scores that a fused attention backward recomputes."""
    note: str = ""
    """Why the count is an upper bound, or what it is based on besides the shapes."""

    def times(self, factor: Fraction, note: str) -> Macs:
        """Returns the MACs times a factor, rounded down."""
        return Macs(full=int(self.full * factor), causal=int(self.causal * factor),
                    recompute=int(self.recompute * factor), note=self.note or note)

    @classmethod
    def of(cls, macs: int | Macs) -> Macs:
        """Converts a plain number, which no mask reduces."""
        return macs if isinstance(macs, Macs) else cls(full=macs, causal=macs)


@dataclass(slots=True, kw_only=True)
class Cost:
    """One call of an operator on the shapes of this rank, or the sum of several."""

    calls: int = 1
    macs: int = 0
    """Multiply-accumulates of contractions: matrix products, convolutions, attention, recurrent layers. Positions
    that an attention mask hides count in full."""
    causal_macs: int = 0
    """`macs` excluding (query, key) pairs that causal attention and its window hide."""
    recompute_macs: int = 0
    """Part of `macs`: scores that a fused attention backward recomputes (1 of its 5 products)."""
    remainder: int = 0
    """FLOPs that 2 x MACs cannot express: 1 if the number of FLOPs of a call is odd."""
    elements: int = 0
    """Elements processed by calls other than contractions; `formulas/dispatched_call.py` selects the tensors."""
    kind: OperatorKind = "other"
    read_bytes: int = 0
    """Bytes read: each input once, broadcast dimensions once, only the gathered rows of a table."""
    write_bytes: int = 0
    """Bytes written: new tensors, and inputs changed in place; 0 for views."""
    counted: bool = False
    """True if `macs` come from a formula, or the operator is known not to be a contraction."""
    estimate_flops: int = 0
    """Rough FLOPs of an FFT, a factorisation or a distance; never part of `flops`."""
    note: str = ""
    """What the count is based on besides the shapes."""

    @property
    def flops(self) -> int:
        """2 per multiply-accumulate, plus `remainder`; nothing but contractions counts."""
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
    """Arguments by schema name, and output, of one call."""

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
"""Returns the MACs of one call, as `Macs` if a mask or recomputation matters."""


TWO_IN_ONE = ("float4_e2m1fn_x2",)
"""Element types that contain two numbers, in PyTorch and its traces, in lower case."""
SPLIT = frozenset({"aten::convolution", "aten::convolution_backward", "aten::convolution_overrideable",
                   "aten::convolution_backward_overrideable"})
"""Operators that torch computes for complex numbers with three real ones: of the real parts, of the imaginary parts,
and of the sums of both."""
OF_COMPLEX = "complex numbers: 8 FLOPs per multiply-accumulate"
PART_OF_COMPLEX = "one of three real products of a complex one, which has 8 FLOPs per multiply-accumulate"


def numbers_in(tensor: Any) -> int:
    """Returns how many numbers a tensor has, counting packed ones."""
    return int(tensor.numel()) * numbers_an_element(tensor)


def numbers_an_element(tensor: Any) -> int:
    """Returns 2 for types with two numbers per byte, else 1."""
    return 2 if str(tensor.dtype).lower().endswith(TWO_IN_ONE) else 1


def real_share(op: str, arguments: dict[str, Any]) -> tuple[Fraction, str]:
    """Returns the factor by which MACs from shapes are multiplied for complex numbers, and the reason.

    Two of the three real convolutions get the factor 3/2, so that all three add up to 4.
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
    """Returns whether a tensor is the real or imaginary part of another one: every second number in its storage."""
    base = getattr(weight, "_base", None)
    if base is not None:
        return "complex" in str(base.dtype)
    if not hasattr(weight, "untyped_storage"):  # from a trace
        return False
    strides = [stride for size, stride in zip(weight.shape, weight.stride(), strict=True) if size > 1]
    return (all(stride % 2 == 0 for stride in strides)
            and weight.untyped_storage().nbytes() == 2 * weight.numel() * weight.element_size())
