"""Parameters that modules hold packed for quantized kernels, in objects that are no tensors.

`torch.ao.nn.quantized` keeps weights and biases of linear, convolution, recurrent and embedding layers that way.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import nn

from distprof.model.tensors import dtype_name, tensors

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

    def _held(self, value: Any, module: nn.Module) -> list[PackedParam]:
        if id(value) not in self._found:
            half = torch.float16 in (getattr(module, "dtype", None), getattr(module, "weight_dtype", None))
            self._found[id(value)] = value, _unpacked(value, half=half)
        return self._found[id(value)][1]


def _is_packed(value: Any) -> bool:
    return isinstance(value, torch.ScriptObject) and value._type().qualified_name().startswith(CLASSES)


def _unpacked(value: Any, *, half: bool) -> list[PackedParam]:
    """What an object gives back, or for the cell of a recurrent layer what its linear layers do."""
    methods = value._method_names()
    if "unpack" in methods:
        return [_described(tensor, half=half) for tensor in tensors(value.unpack())]
    parts = _leaves(value.__getstate__())
    half = HALF in [part for part in parts if isinstance(part, str)]
    return [param for part in parts if _is_packed(part) for param in _unpacked(part, half=half)]


def _leaves(state: Any) -> list[Any]:
    return [leaf for part in state for leaf in _leaves(part)] if isinstance(state, (tuple, list)) else [state]


def _described(tensor: torch.Tensor, *, half: bool) -> PackedParam:
    """Weights in half precision are given back in single precision; biases are kept in that."""
    kept = torch.float16 if half and tensor.dim() > 1 else tensor.dtype
    return PackedParam(tensor.numel(), dtype_name(kept), tensor.numel() * kept.itemsize)
