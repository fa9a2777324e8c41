"""Counts parameters: what a rank stores, what it needs, and what the model has.

A data-parallel shard (FSDP, ZeRO-3) counts with its unsharded size, a model-parallel shard with its own.

Routed experts process a fraction of the tokens. Which modules these are, and how many of them process a token, follows
from what implementations of mixtures of experts have in common: children with `expert` in their name, next to a gate or
router whose weight has one row per expert, and the number of experts per token as an attribute.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from distprof.contract.rank_json import ParamCount
from distprof.model.held_params import FlatParams, HeldParam, held_param, stored_elements
from distprof.model.quantized_params import PackedParam, PackedParams, quantized_weights
from distprof.process.topology import Topology


class OwnParam(NamedTuple):
    """A parameter of one module."""

    name: str
    """Name in the module."""
    key: Hashable
    """The same for a parameter that several modules share."""
    shape: tuple[int, ...] | None
    param: HeldParam
    tensor: torch.Tensor | None
    """The parameter, if its values are on this rank in the form in which they are used; None for a part of a flat
    parameter."""


class _Held(NamedTuple):
    """Parameters and buffers of a module itself."""

    params: dict[Hashable, HeldParam]
    buffers: dict[int, torch.Tensor]
    has_packed: bool


class ParamCounter:
    """Counts the parameters of modules including their submodules; each packed object is unpacked once."""

    def __init__(self, roots: Sequence[nn.Module], topology: Topology) -> None:
        """Finds flat parameters.

        Args:
            roots: The modules to count, or root modules that contain them.
            topology: The mesh, and the place of this rank in it.
        """
        self._topology = topology
        self._flat = FlatParams(roots)
        self._packed = PackedParams()
        self._own: dict[int, list[OwnParam]] = {}
        """By id of the module, as are the next three; modules must outlive the counter."""
        self._held: dict[int, _Held] = {}
        self._trees: dict[int, dict[int, nn.Module]] = {}
        """A module and all its submodules, each once."""
        self._open: set[int] = set()
        """Modules whose trees are being collected."""

    def below(self, modules: Sequence[nn.Module]) -> ParamCount:
        """Counts parameters and buffers of modules and their submodules, tied ones once."""
        inside: dict[int, nn.Module] = {}
        for module in modules:
            inside.update(self._inside(module))
        params: dict[Hashable, HeldParam] = {}
        buffers: dict[int, torch.Tensor] = {}
        packing: list[nn.Module] = []
        for key, module in inside.items():
            held = self._held.get(key) or self._look_at(module)
            params.update(held.params)
            buffers.update(held.buffers)
            if held.has_packed:
                packing.append(module)
        return _summed(params.values(), self._packed.of(packing), buffers.values(), self._topology)

    def _inside(self, module: nn.Module) -> dict[int, nn.Module]:
        found = self._trees.get(id(module))
        if found is None:
            if id(module) in self._open:  # a module that contains itself
                return {id(inner): inner for inner in module.modules()}
            self._open.add(id(module))
            found = {id(module): module}
            for child in module.children():
                found.update(self._inside(child))
            self._open.remove(id(module))
            self._trees[id(module)] = found
        return found

    def _look_at(self, module: nn.Module) -> _Held:
        quantized = quantized_weights(module).numbers
        buffers = {id(buffer): buffer for name, buffer in module._buffers.items() if buffer is not None
                   and name not in quantized and not is_lazy(buffer)}  # lazy buffers have no elements yet
        params: dict[Hashable, HeldParam] = {own.key: own.param for own in self.own_params(module)}
        found = self._held[id(module)] = _Held(params, buffers, bool(self.packed(module)))
        return found

    def own(self, module: nn.Module) -> int:
        """Counts the parameters of a module, excluding submodules."""
        held = self._held.get(id(module)) or self._look_at(module)
        packed = self.packed(module) if held.has_packed else ()
        return sum(param.size for param in held.params.values()) + sum(param.size for param in packed)

    def own_params(self, module: nn.Module) -> list[OwnParam]:
        """Returns the parameters of a module, excluding submodules and packed parameters."""
        if id(module) not in self._own:
            self._own[id(module)] = list(self._looked_up(module))
        return self._own[id(module)]

    def _looked_up(self, module: nn.Module) -> Iterator[OwnParam]:
        quantized = quantized_weights(module)
        in_buffers = ((name, buffer) for name, buffer in module._buffers.items() if buffer is not None
                      and name in quantized.numbers)
        for name, tensor in (*module.named_parameters(recurse=False), *in_buffers):
            if not is_lazy(tensor) and not self._flat.replaces(tensor):
                each = Fraction(0) if name in quantized.beside else quantized.numbers.get(name, Fraction(1))
                param = held_param(tensor, self._topology).of_numbers(each)
                yield OwnParam(name, id(tensor), tuple(tensor.shape), param, tensor)
        for original in self._flat.of(module):
            yield OwnParam(original.name, original.key, original.shape, original.param, None)

    def packed(self, module: nn.Module) -> list[PackedParam]:
        """Returns the parameters that a module itself holds packed for quantized kernels."""
        return self._packed.of([module])


def _summed(params: Collection[HeldParam], packed: list[PackedParam], buffers: Iterable[torch.Tensor],
            topology: Topology) -> ParamCount:
    """Sums up parameters and buffers; packed parameters are never trained or sharded."""
    size = stored = trainable = num_bytes = 0
    dtypes: dict[str, int] = defaultdict(int)
    for param in params:
        size += param.size
        stored += param.stored
        trainable += param.size if param.trainable else 0
        num_bytes += param.num_bytes
        if param.size:
            dtypes[param.dtype] += param.size
    for pack in packed:
        dtypes[pack.dtype] += pack.size
    num_packed, unique = sum(pack.size for pack in packed), _unique(params, topology)
    in_buffers = [(stored_elements(tensor), tensor.element_size()) for tensor in buffers]
    return ParamCount(
        params=size + num_packed,
        stored_params=stored + num_packed,
        trainable_params=trainable,
        unique_params=None if unique is None else unique + num_packed,
        param_bytes=num_bytes + sum(pack.num_bytes for pack in packed),
        buffers=sum(elements for elements, _ in in_buffers),
        buffer_bytes=sum(elements * element_size for elements, element_size in in_buffers),
        dtypes=dict(dtypes),
    )


def _unique(params: Collection[HeldParam], topology: Topology) -> int | None:
    """Returns the sum of whole sizes; None if unknown. A plain tensor next to tensors known to be shards is a
    replica."""
    divided = topology.sizes.get("tp", 1) * topology.sizes.get("ep", 1) > 1
    if divided and not any(param.whole_is_known for param in params):
        return None
    return sum(param.whole for param in params)


ROUTERS = ("gate", "router")
NUM_EXPERTS = ("num_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts", "num_total_experts",
               "n_experts", "num_local_experts")
"""Attributes for the number of experts. The last one counts all experts in Mixtral but those of this rank in DeepSpeed,
where the router has the total."""
TOP_K = ("top_k", "num_experts_per_tok", "num_experts_per_token", "moe_top_k", "topk", "moe_router_topk", "k")


def active_ratios(root: nn.Module) -> dict[int, float]:
    """Returns the fraction of tokens that routed experts process, if all experts get the same number.

    Returns:
        id of a module -> experts per token / number of experts, for routed experts and their submodules; without those
        of models that do not state both numbers.
    """
    return {id(inner): ratio for module in root.modules() if (ratio := _ratio(module)) is not None
            for inner in _routed(module)}


def _ratio(module: nn.Module) -> float | None:
    children = dict(module.named_children())
    if not any("expert" in name for name in children):
        return None
    routers = [children[name] for name in ROUTERS if name in children]
    places = [*routers, module, *(found for one in (*routers, module) if (found := getattr(one, "config", None)))]
    num_experts = next((rows for one in routers if (rows := _rows(one)) is not None), None) or _first(
        places, NUM_EXPERTS)
    top_k = _first(places, TOP_K)
    return top_k / num_experts if num_experts and top_k and top_k <= num_experts else None


def _rows(router: nn.Module) -> int | None:
    """Returns the rows of the only matrix of a router, one per expert; None if there are several matrices or none."""
    matrices = [parameter for parameter in router.parameters() if parameter.dim() == 2]
    return int(matrices[0].shape[0]) if len(matrices) == 1 else None


def _first(places: list[object], names: tuple[str, ...]) -> int | None:
    found = (getattr(place, name, None) for place in places for name in names)
    return next((value for value in found if type(value) is int and value > 0), None)


def _routed(module: nn.Module) -> Iterator[nn.Module]:
    for name, child in module.named_children():
        if "expert" in name and "shared" not in name:
            yield from (inner for path, inner in child.named_modules() if "shared" not in path)
