"""Weights of few bits in plain tensors, with their scales beside them: what they were in the model that was quantized.

Linear layers say how large they are (GPTQ, AWQ, HQQ, EETQ, BitNet, 8-bit floats); of experts the class has to be known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from distprof.model.tensors import dtype_name
from distprof.shape_formulas.element_types import numbers_an_element

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
