"""What a rank holds of a parameter that is a plain tensor, a DTensor, a ZeRO-3 partition or a packed tensor.

Also the original parameters that FSDP (`FullyShardedDataParallel`) has flattened. Their sizes come from the metadata of
the flat parameter: nothing is gathered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod
from typing import Any, NamedTuple

import torch
from torch import nn

from distprof.contract.mesh import DATA_PARALLEL
from distprof.model.tensors import dtype_name, parts_of
from distprof.process.live_topology import axes_of_mesh
from distprof.process.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldParam:
    """One parameter on this rank."""

    size: int
    """Elements that the rank needs for its model-parallel part; a data-parallel shard counts with its unsharded
    size."""
    stored: int
    """Number of elements stored on the rank."""
    num_bytes: int
    """Bytes of the stored elements."""
    whole: int
    """Elements on all ranks of its pipeline stage together, replicas once."""
    whole_is_known: bool
    """False for a plain tensor, which may be one part of a tensor divided over ranks; `whole` is then `size`."""
    dtype: str
    trainable: bool = False

    def of_numbers(self, each: Fraction) -> HeldParam:
        """Returns the parameter with `each` numbers in each element, and the same bytes."""
        if each == 1:
            return self
        size, stored, whole = (int(number * each) for number in (self.size, self.stored, self.whole))
        return replace(self, size=size, stored=stored, whole=whole)


def held_param(tensor: torch.Tensor, topology: Topology) -> HeldParam:
    """Returns what the rank holds of a tensor."""
    stored, packing, shard_of = stored_elements(tensor), _packing(tensor), topology.sizes.get("tp", 1)
    is_known = is_dtensor(tensor) or hasattr(tensor, "ds_numel") or is_megatron_shard(tensor)
    return HeldParam(
        size=_needed(tensor, topology.unnamed_axes),
        stored=stored,
        num_bytes=_num_bytes(tensor, stored if packing is None else int(tensor.numel())),
        whole=int(getattr(tensor, "ds_numel", _size(tensor))) * (shard_of if is_megatron_shard(tensor) else 1),
        whole_is_known=is_known,
        dtype=dtype_name(tensor.dtype) if packing is None else str(packing.quant_type),
        trainable=bool(tensor.requires_grad))


def _num_bytes(tensor: torch.Tensor, stored: int) -> int:
    """Returns the bytes of the elements stored here; for a tensor that consists of others (sparse, quantized), their
    bytes."""
    if is_dtensor(tensor) or hasattr(tensor, "ds_numel"):
        return stored * int(tensor.element_size())
    parts = parts_of(tensor)
    return stored * int(tensor.element_size()) if parts is None else sum(
        _num_bytes(part, int(part.numel())) for part in parts)


def is_dtensor(tensor: object) -> bool:
    """Returns whether a tensor is a DTensor, which knows how it is divided over a mesh."""
    return hasattr(tensor, "placements") and hasattr(tensor, "device_mesh")


def is_megatron_shard(tensor: object) -> bool:
    """Returns whether Megatron marked a plain tensor as a tensor-parallel shard."""
    return bool(getattr(tensor, "tensor_model_parallel", False)) and not is_dtensor(tensor)


def _packing(tensor: object) -> Any:
    """Returns how bitsandbytes packed a parameter, several numbers per byte; None for other parameters."""
    found = getattr(tensor, "quant_state", None)
    return found if hasattr(found, "shape") and hasattr(found, "quant_type") else None


def _size(tensor: torch.Tensor) -> int:
    """Returns the elements of a parameter that is not partitioned."""
    packing = _packing(tensor)
    return int(tensor.numel()) if packing is None else prod(packing.shape)


def _needed(tensor: Any, unnamed_axes: Sequence[str]) -> int:
    if hasattr(tensor, "ds_numel"):  # a ZeRO-3 placeholder
        return int(tensor.ds_numel)
    if not is_dtensor(tensor):
        return _size(tensor)
    shape: list[int] = list(tensor.shape)
    axes = axes_of_mesh(tensor.device_mesh, unnamed_axes)
    for index, (placement, axis) in enumerate(zip(tensor.placements, axes, strict=True)):
        if placement.is_shard() and axis not in (None, *DATA_PARALLEL):
            shape[placement.dim] = _chunk(shape[placement.dim], tensor.device_mesh, index)
    return prod(shape)


def _chunk(size: int, mesh: Any, index: int) -> int:
    """Returns the rows of the chunk that torch.chunk assigns to this rank."""
    step = -(-size // int(mesh.size(index)))
    begin = min(int(mesh.get_local_rank(index)) * step, size)
    return min(begin + step, size) - begin


def stored_elements(tensor: Any) -> int:
    """Returns the elements of a parameter or buffer that are stored on this rank."""
    shard = getattr(tensor, "ds_tensor", None)
    if shard is not None:
        return int(shard.numel())
    return int(tensor.to_local().numel()) if is_dtensor(tensor) else _size(tensor)


class Original(NamedTuple):
    """An original parameter inside a flat one."""

    name: str
    """Name in its module."""
    key: tuple[int, int]
    """The same for a parameter that several modules share."""
    shape: tuple[int, ...]
    param: HeldParam


class FlatParams:
    """The flat parameters in some root modules."""

    def __init__(self, roots: Iterable[nn.Module]) -> None:
        self._of_module: dict[int, list[Original]] = defaultdict(list)
        self._replaced: set[int] = set()
        self._flat = list({id(flat): flat for root in roots for module in root.modules()
                           if (flat := _flat_param(module)) is not None}.values())  # kept alive, so that ids stay valid
        for flat in self._flat:
            self._take_in(flat)

    def of(self, module: nn.Module) -> list[Original]:
        """Returns the original parameters of a module itself."""
        return self._of_module.get(id(module), [])

    def replaces(self, parameter: torch.Tensor) -> bool:
        """Returns whether a parameter is flat, or a view into a flat one that replaces the original."""
        return id(parameter) in self._replaced

    def _take_in(self, flat: Any) -> None:
        views = (*(flat._params or ()), *(flat._shared_params or ()))
        self._replaced |= {id(flat), *map(id, views)}
        originals = dict(_originals(flat))
        for (holder, _), original in originals.items():
            self._of_module[holder].append(original)
        for shared in flat._shared_param_infos:
            first = originals[id(shared.prim_module), shared.prim_param_name]
            self._of_module[id(shared.module)].append(first._replace(name=shared.param_name))


def _flat_param(module: nn.Module) -> Any:
    return getattr(getattr(module, "_handle", None), "flat_param", None)


def _originals(flat: Any) -> Iterator[tuple[tuple[int, str], Original]]:
    """Yields the original parameters, each with the id of its module and its name there."""
    params = flat._params or [flat] * flat._num_params
    rows = zip(flat._param_infos, flat._shapes, flat._shard_param_infos, params, strict=True)
    for index, (info, shape, shard, param) in enumerate(rows):
        stored = int(shard.numel_in_shard or 0)
        held = HeldParam(size=prod(shape), stored=stored, num_bytes=stored * flat.element_size(), whole=prod(shape),
                         whole_is_known=flat._param_extensions[index] is None, dtype=dtype_name(flat.dtype),
                         trainable=bool(param.requires_grad))
        yield (id(info.module), info.param_name), Original(info.param_name, (id(flat), index), tuple(shape), held)
