"""Inputs of a call, as torch.profiler records them with record_shapes: sizes, strides, types and plain values."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

FLOATS = {"float": 4, "double": 8, "c10::Half": 2, "c10::BFloat16": 2}
ITEM_BYTES = {
    **FLOATS, "long int": 8, "long": 8, "int": 4, "short int": 2, "short": 2, "bool": 1, "unsigned char": 1,
    "signed char": 1, "char": 1, "c10::complex<float>": 8, "c10::complex<double>": 16, "unsigned short": 2,
    "unsigned int": 4, "unsigned long": 8,
    **{f"c10::{name}": 1 for name in ("Float8_e4m3fn", "Float8_e5m2", "Float8_e4m3fnuz", "Float8_e5m2fnuz",
                                      "Float8_e8m0fnu")},
}
"""Element type, as the profiler names it -> bytes."""
NUMBERED = {"0": "unsigned char", "1": "signed char", "2": "short int", "3": "int", "4": "long int", "5": "c10::Half",
            "6": "float", "7": "double", "11": "bool", "15": "c10::BFloat16", "23": "c10::Float8_e5m2",
            "24": "c10::Float8_e4m3fn"}
"""Element type, as the profiler writes it if it is an argument -> its name."""
LISTS = ("TensorList", "GenericList")


class _Unknown:
    """An argument that the trace does not describe sufficiently: a long list, a sparse tensor."""


UNKNOWN = _Unknown()


@dataclass(frozen=True, slots=True)
class TracedTensor:
    """A tensor with the attributes that formulas need."""

    shape: tuple[int, ...]
    dtype: str = ""
    strides: tuple[int, ...] | None = None
    """None if the trace does not have them."""
    is_nested: ClassVar[bool] = False
    layout: ClassVar[str] = "torch.strided"

    def dim(self) -> int:
        return len(self.shape)

    def numel(self) -> int:
        return prod(self.shape)

    def size_bytes(self) -> int:
        """Returns the bytes of its memory, counting broadcast dimensions once.

        Raises:
            ValueError: Type or strides are unknown.
        """
        if self.dtype not in ITEM_BYTES or self.strides is None:
            raise ValueError
        return ITEM_BYTES[self.dtype] * prod(
            size if stride or not size else 1 for size, stride in zip(self.shape, self.strides, strict=True))


def inputs_of(dims: Any, types: Any, strides: Any, values: Any) -> list[Any]:
    """Returns the arguments in order: tensors, lists of tensors, values; None for those that were not given.

    Args:
        dims: "Input Dims" of a slice.
        types: "Input type", of the same length.
        strides: "Input Strides"; None in traces of older versions, as are `values`.
        values: "Concrete Inputs".

    Raises:
        ValueError: They have different lengths or invalid sizes.
        TypeError: They are not lists.
    """
    count = len(types)
    strides = [None] * count if strides is None else strides
    values = [None] * count if values is None else values
    return [_input(*one) for one in zip(dims, types, strides, values, strict=True)]


def _input(dims: Any, kind: Any, strides: Any, value: Any) -> Any:
    if kind == "":
        return None
    if kind in ("Scalar", "ScalarList"):
        return UNKNOWN if value is None else value_of(value)
    if kind in LISTS:  # the profiler omits lists of more than 30 tensors
        known = kind == "TensorList" and dims
        return [_tensor(sizes, "", None) for sizes in dims] if known else UNKNOWN
    return _tensor(dims, kind, strides)


def _tensor(dims: object, dtype: str, strides: Any) -> Any:
    shape = _sizes(dims)
    if strides is None:
        return TracedTensor(shape, dtype)
    if len(strides) != len(shape):  # a sparse tensor has sizes but no strides
        return UNKNOWN
    return TracedTensor(shape, dtype, _sizes(strides))


def _sizes(dims: object) -> tuple[int, ...]:
    if not isinstance(dims, list) or not all(type(size) is int and size >= 0 for size in dims):
        raise ValueError
    return tuple(dims)


def value_of(text: str) -> Any:
    """Parses a value: `[1, 1]` -> [1, 1], `False` -> False; anything but lists, integers and bools remains text."""
    text = text.strip()
    if text.startswith("[") and text.endswith("]"):
        return [value_of(one) for one in text[1:-1].split(",")] if text[1:-1].strip() else []
    if text in ("True", "False"):
        return text == "True"
    try:
        return int(text)
    except ValueError:
        return text
