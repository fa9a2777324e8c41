"""Parameters of quantized modules: packed in objects that are no tensors, or of few bits with scales beside them.

Parameters that modules hold packed for quantized kernels, in objects that are no tensors. `torch.ao.nn.quantized` keeps
weights and biases of linear, convolution, recurrent and embedding layers that way.

Weights of few bits in plain tensors, with their scales beside them: what they were in the model that was quantized.
Linear layers say how large they are (GPTQ, AWQ, HQQ, EETQ, BitNet, 8-bit floats); of experts the class has to be known.
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
"""How names of torch's own packed classes begin; a script, or a class of a user, may have an `unpack` of its own."""
HALF = "quantized_fp16"
"""What a recurrent layer calls itself whose weights are kept in half precision."""


class PackedParam(NamedTuple):
    """One weight or bias."""

    size: int
    dtype: str
    num_bytes: int


class PackedParams:
    """Finds packed parameters; each object is unpacked once, which takes a copy of its weights."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[Any, list[PackedParam]]] = {}
        """id of an object -> the object, which stays alive, and what it holds."""
        self._in: dict[int, list[Any]] = {}
        """Objects in a module, by its id; modules outlive this."""

    def of(self, modules: Iterable[nn.Module]) -> list[PackedParam]:
        """The packed parameters that these modules hold themselves, shared ones once."""
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
    """What an object gives back, or for the cell of a recurrent layer what its linear layers do."""
    methods = value._method_names()
    if "unpack" in methods:
        return [_described(tensor, half=half) for tensor in tensors(value.unpack())]
    parts = _leaves(value.__getstate__())
    half = HALF in [part for part in parts if isinstance(part, str)]
    return [param for part in parts if _is_packed(part) for param in _unpacked(part, half=half)]


def _leaves(state: object) -> list[Any]:
    return [leaf for part in state for leaf in _leaves(part)] if isinstance(state, (tuple, list)) else [state]


def _described(tensor: torch.Tensor, *, half: bool) -> PackedParam:
    """Weights in half precision are given back in single precision; biases are kept in that."""
    kept = torch.float16 if half and tensor.dim() > 1 else tensor.dtype
    return PackedParam(tensor.numel(), dtype_name(kept), tensor.numel() * kept.itemsize)


FEW_BITS = ("uint8", "int8", "int16", "int32", "float8", "float4")
"""How types begin that hold weights of few bits, one or several in an element."""
WEIGHTS = ("weight", "qweight", "weight_packed", "W_q")
SIZES = (("in_features", "out_features"), ("infeatures", "outfeatures"))
TWO_IN_A_BYTE = frozenset({"Mxfp4GptOssExperts", "FP8Experts"})
"""Experts whose weights, where they are integers, hold two numbers a byte."""
SCALE = re.compile(r"(^|_)(scales?|zeros?|zero_points?|qzeros)(_inv|_and_zero|_global)?\d*$")
"""Names of numbers that only serve to restore weights."""


class QuantizedWeights(NamedTuple):
    """Tensors that a module itself holds."""

    numbers: Mapping[str, Fraction]
    """Name -> numbers of the model in each element. Buffers among them are parameters of the model."""
    beside: frozenset[str]
    """Parameters that the model did not have."""


NONE = QuantizedWeights({}, frozenset())


def quantized_weights(module: nn.Module) -> QuantizedWeights:
    """What is quantized in a module, without those inside it."""
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
