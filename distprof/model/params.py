"""Counts parameters: what a rank stores, what it must hold, and what the model has.

A data-parallel shard (FSDP, ZeRO-3) counts with its unsharded size, a model-parallel shard with its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from distprof.contract.rank_json import ParamCount
from distprof.model.flat_params import FlatParams
from distprof.model.held_params import HeldParam, held_param, stored_elements
from distprof.model.packed_params import PackedParam, PackedParams
from distprof.process.topology import Topology


class OwnParam(NamedTuple):
    """A parameter of one module."""

    name: str
    """In the module; '' where it has none."""
    key: Hashable
    """Equal for a parameter that several modules share."""
    shape: tuple[int, ...] | None
    param: HeldParam
    tensor: torch.Tensor | None
    """Its values, where they lie on this rank as they are used; None for a part of a flat or packed parameter."""


class ParamCounter:
    """Counts the parameters of modules and of all inside them; each object is unpacked once."""

    def __init__(self, roots: Sequence[nn.Module], topology: Topology) -> None:
        """Looks for flat parameters.

        Args:
            roots: The modules, or the roots that they are in.
            topology: Where this rank stands.
        """
        self._topology = topology
        self._flat = FlatParams(roots)
        self._packed = PackedParams()
        self._own: dict[int, list[OwnParam]] = {}
        """By id of the module; a counter lives while the modules do."""

    def below(self, modules: Sequence[nn.Module]) -> ParamCount:
        """Counts parameters and buffers of modules and of all inside them, a tied one once."""
        inside = list({id(inner): inner for module in modules for inner in module.modules()}.values())
        buffers = _once(buffer for module in inside for buffer in module._buffers.values() if buffer is not None)
        return _summed(self._once(inside), self._packed.of(inside), buffers, self._topology)

    def own(self, module: nn.Module) -> int:
        """Counts the parameters of a module without those of the modules inside it."""
        return sum(param.size for param in self._once([module])) + sum(param.size for param in self.packed(module))

    def own_params(self, module: nn.Module) -> list[OwnParam]:
        """The parameters of a module without those of the modules inside it, packed ones left out."""
        if id(module) not in self._own:
            self._own[id(module)] = list(self._looked_up(module))
        return self._own[id(module)]

    def _looked_up(self, module: nn.Module) -> Iterator[OwnParam]:
        for name, tensor in module.named_parameters(recurse=False):
            if not is_lazy(tensor) and not self._flat.replaces(tensor):
                yield OwnParam(name, id(tensor), tuple(tensor.shape), held_param(tensor, self._topology), tensor)
        for original in self._flat.of(module):
            yield OwnParam(original.name, original.key, original.shape, original.param, None)

    def packed(self, module: nn.Module) -> list[PackedParam]:
        """Those that a module itself holds packed for quantized kernels."""
        return self._packed.of([module])

    def _once(self, modules: Iterable[nn.Module]) -> list[HeldParam]:
        return list({own.key: own.param for module in modules for own in self.own_params(module)}.values())


def _summed(params: list[HeldParam], packed: list[PackedParam], buffers: list[torch.Tensor],
            topology: Topology) -> ParamCount:
    """Packed parameters are never trained nor sharded."""
    every: list[HeldParam | PackedParam] = [*params, *packed]
    dtypes: Counter[str] = Counter()
    for param in every:
        dtypes[param.dtype] += param.size
    num_packed, unique = sum(param.size for param in packed), _unique(params, topology)
    return ParamCount(
        params=sum(param.size for param in params) + num_packed,
        stored_params=sum(param.stored for param in params) + num_packed,
        trainable_params=sum(param.size for param in params if param.trainable),
        unique_params=None if unique is None else unique + num_packed,
        param_bytes=sum(param.num_bytes for param in every),
        buffers=sum(map(stored_elements, buffers)),
        buffer_bytes=sum(stored_elements(tensor) * tensor.element_size() for tensor in buffers),
        dtypes=dict(dtypes),
    )


def _once(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Each tensor once; lazy ones that no call has filled hold nothing yet."""
    return list({id(tensor): tensor for tensor in tensors if not is_lazy(tensor)}.values())


def _unique(params: list[HeldParam], topology: Topology) -> int | None:
    """Sum of whole sizes; beside tensors that are known to be parts a plain one is a replica."""
    divided = topology.sizes.get("tp", 1) * topology.sizes.get("ep", 1) > 1
    if divided and not any(param.whole_is_known for param in params):
        return None
    return sum(param.whole for param in params)
