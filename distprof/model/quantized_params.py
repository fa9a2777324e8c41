"""Parameters of quantized modules: packed into objects that are not tensors, or low-bit tensors with scales.

`torch.ao.nn.quantized` packs weights and biases of linear, convolution, recurrent and embedding layers into objects for
quantized kernels.

Low-bit weights in plain tensors, next to their scales, count as in the model before quantization. Linear layers state
their size (GPTQ, AWQ, HQQ, EETQ, BitNet, 8-bit floats); for experts, the class must be known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from distprof.model.tensors import dtype_name, tensors
from distprof.shape_formulas.operator_call import numbers_an_element

CLASSES = tuple(f"__torch__.torch.classes.{room}." for room in ("quantized", "rnn", "sparse"))
"""Beginnings of the names of torch's packed classes; scripts and classes of users may have other `unpack` methods."""
HALF = "quantized_fp16"
"""Type name in the state of a recurrent layer whose weights are stored in half precision."""


class PackedParam(NamedTuple):
    """A packed weight or bias."""

    size: int
    dtype: str
    num_bytes: int


class PackedParams:
    """Finds packed parameters; each object is unpacked once, because that copies its weights."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[Any, list[PackedParam]]] = {}
        """id of a packed object -> the object, which is kept alive, and its parameters."""
        self._in: dict[int, list[Any]] = {}
        """id of a module -> its packed objects; modules must outlive this."""

    def of(self, modules: Iterable[nn.Module]) -> list[PackedParam]:
        """Returns the packed parameters of these modules themselves, shared ones once."""
        holders = {id(value): (value, module) for module in modules for value in self._values(module)}
        return [param for value, module in holders.values() for param in self._held(value, module)]

    def _values(self, module: nn.Module) -> list[Any]:
        found = self._in.get(id(module))
        if found is None:
            found = self._in[id(module)] = [
                value for value in vars(module).values() if isinstance(value, torch.ScriptObject) and _is_packed(value)]
        return found

    def _held(self, value: object, module: nn.Module) -> list[PackedParam]:
        if id(value) not in self._found:
            half = torch.float16 in (getattr(module, "dtype", None), getattr(module, "weight_dtype", None))
            self._found[id(value)] = value, _unpacked(value, half=half)
        return self._found[id(value)][1]


def _is_packed(value: object) -> bool:
    return isinstance(value, torch.ScriptObject) and value._type().qualified_name().startswith(CLASSES)


def _unpacked(value: Any, *, half: bool) -> list[PackedParam]:
    """Unpacks an object; for the cell of a recurrent layer, its linear layers."""
    methods = value._method_names()
    if "unpack" in methods:
        return [_described(tensor, half=half) for tensor in tensors(value.unpack())]
    parts = _leaves(value.__getstate__())
    half = HALF in [part for part in parts if isinstance(part, str)]
    return [param for part in parts if _is_packed(part) for param in _unpacked(part, half=half)]


def _leaves(state: object) -> list[Any]:
    return [leaf for part in state for leaf in _leaves(part)] if isinstance(state, (tuple, list)) else [state]


def _described(tensor: torch.Tensor, *, half: bool) -> PackedParam:
    """Describes an unpacked tensor. Half-precision weights are unpacked to single precision, in which biases are
    stored."""
    kept = torch.float16 if half and tensor.dim() > 1 else tensor.dtype
    return PackedParam(tensor.numel(), dtype_name(kept), tensor.numel() * kept.itemsize)


FEW_BITS = ("uint8", "int8", "int16", "int32", "float8", "float4")
"""Beginnings of the names of element types for low-bit weights, one or several per element."""
WEIGHTS = ("weight", "qweight", "weight_packed", "W_q")
SIZES = (("in_features", "out_features"), ("infeatures", "outfeatures"))
TWO_IN_A_BYTE = frozenset({"Mxfp4GptOssExperts", "FP8Experts"})
"""Classes of experts whose integer weights have two numbers per byte."""
SCALE = re.compile(r"(^|_)(scales?|zeros?|zero_points?|qzeros)(_inv|_and_zero|_global)?\d*$")
"""Names of scales and zero points, which only serve to restore weights."""


class QuantizedWeights(NamedTuple):
    """Quantized tensors of a module itself."""

    numbers: Mapping[str, Fraction]
    """Name -> numbers of the original model in each element. Buffers among them were parameters of that model."""
    beside: frozenset[str]
    """Parameters that the original model did not have: scales and zero points."""


NONE = QuantizedWeights({}, frozenset())


def quantized_weights(module: nn.Module) -> QuantizedWeights:
    """Returns what is quantized in a module, excluding submodules."""
    held = {name: tensor for name, tensor in (*module._parameters.items(), *module._buffers.items())
            if tensor is not None and not is_lazy(tensor)}
    few = {name: tensor for name, tensor in held.items()
           if tensor.dim() > 1 and tensor.numel() and dtype_name(tensor.dtype).startswith(FEW_BITS)
           and not SCALE.search(name)}
    numbers = _of_linear_layer(module, few) or _of_experts(module, few)
    if not numbers:
        return NONE
    bias = {"bias": Fraction(1)} if module._buffers.get("bias") is not None else {}
    beside = frozenset(name for name in held if name in module._parameters and SCALE.search(name))
    return QuantizedWeights(numbers | bias, beside)


def _of_linear_layer(module: nn.Module, few: Mapping[str, torch.Tensor]) -> dict[str, Fraction]:
    name = next((name for name in WEIGHTS if name in few), None)
    for sizes in SIZES:
        rows, columns = (getattr(module, size, None) for size in sizes)
        if name is not None and isinstance(rows, int) and isinstance(columns, int):
            return {name: Fraction(rows * columns, few[name].numel())}
    return {}


def _of_experts(module: nn.Module, few: Mapping[str, torch.Tensor]) -> dict[str, Fraction]:
    packed = any(base.__name__ in TWO_IN_A_BYTE for base in type(module).__mro__)
    found = {name: 2 if packed and not tensor.is_floating_point() else numbers_an_element(tensor)
             for name, tensor in few.items() if name in module._parameters}
    return {name: Fraction(number) for name, number in found.items()} if packed or 2 in found.values() else {}
