"""Counts parameters: what a rank stores, what it must hold, and what the model has.

A data-parallel shard (FSDP, ZeRO-3) counts with its unsharded size, a model-parallel shard with its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from distprof.contract.mesh import axis_of_dimension
from distprof.contract.rank_json import ParamCount
from distprof.model.packed_params import PackedParam, PackedParams
from distprof.model.tensors import dtype_name
from distprof.process.topology import Topology


def count_params(modules: Sequence[nn.Module], topology: Topology, packed: PackedParams) -> ParamCount:
    """Counts parameters and buffers of modules and of all inside them, a tied one once."""
    return _counted((p for module in modules for p in module.parameters()), topology,
                    (b for module in modules for b in module.buffers()),
                    packed.of(inner for module in modules for inner in module.modules()))


def count_own_params(module: nn.Module, topology: Topology, packed: PackedParams) -> int:
    """Counts the parameters of a module without those of the modules inside it."""
    return _counted(module.parameters(recurse=False), topology, (), packed.of([module])).params


def _counted(parameters: Iterable[torch.Tensor], topology: Topology, buffers: Iterable[torch.Tensor],
             packed: list[PackedParam]) -> ParamCount:
    """Packed parameters are never trained nor sharded."""
    tensors, extra = _once(parameters), _once(buffers)
    needed = [_needed(tensor, topology.unnamed_axis) for tensor in tensors]
    dtypes: Counter[str] = Counter()
    for size, tensor in zip(needed, tensors, strict=True):
        dtypes[_dtype(tensor)] += size
    for param in packed:
        dtypes[param.dtype] += param.size
    num_packed, unique = sum(param.size for param in packed), _unique(tensors, topology)
    return ParamCount(
        params=sum(needed) + num_packed,
        stored_params=sum(_stored(tensor) for tensor in tensors) + num_packed,
        trainable_params=sum(size for size, tensor in zip(needed, tensors, strict=True) if tensor.requires_grad),
        unique_params=None if unique is None else unique + num_packed,
        param_bytes=sum(map(_stored_bytes, tensors)) + sum(param.num_bytes for param in packed),
        buffers=sum(_stored(tensor) for tensor in extra),
        buffer_bytes=sum(_stored(tensor) * tensor.element_size() for tensor in extra),
        dtypes=dict(dtypes),
    )


def _once(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Each tensor once; lazy ones that no call has filled hold nothing yet."""
    return list({id(tensor): tensor for tensor in tensors if not is_lazy(tensor)}.values())


def _packing(tensor: Any) -> Any:
    """How bitsandbytes packed a parameter, several numbers into a byte; None for any other."""
    found = getattr(tensor, "quant_state", None)
    return found if hasattr(found, "shape") and hasattr(found, "quant_type") else None


def _dtype(tensor: torch.Tensor) -> str:
    packing = _packing(tensor)
    return dtype_name(tensor.dtype) if packing is None else str(packing.quant_type)


def _size(tensor: Any) -> int:
    """Elements of a parameter that is not partitioned here."""
    packing = _packing(tensor)
    return int(tensor.numel()) if packing is None else prod(packing.shape)


def _is_dtensor(tensor: torch.Tensor) -> bool:
    return hasattr(tensor, "placements") and hasattr(tensor, "device_mesh")


def _needed(tensor: Any, unnamed_axis: str) -> int:
    if hasattr(tensor, "ds_numel"):  # a ZeRO-3 placeholder
        return int(tensor.ds_numel)
    if not _is_dtensor(tensor):
        return _size(tensor)
    shape: list[int] = list(tensor.shape)
    for index, placement in enumerate(tensor.placements):
        if placement.is_shard() and _is_model_parallel(tensor.device_mesh, index, unnamed_axis):
            shape[placement.dim] = _chunk(shape[placement.dim], tensor.device_mesh, index)
    return prod(shape)


def _is_model_parallel(mesh: Any, index: int, unnamed_axis: str) -> bool:
    names = mesh.mesh_dim_names
    return (unnamed_axis if names is None else axis_of_dimension(names[index])) not in ("dp", None)


def _chunk(size: int, mesh: Any, index: int) -> int:
    """Rows of the piece that torch.chunk gives this rank."""
    step = -(-size // int(mesh.size(index)))
    begin = min(int(mesh.get_local_rank(index)) * step, size)
    return min(begin + step, size) - begin


def _stored(tensor: Any) -> int:
    shard = getattr(tensor, "ds_tensor", None)
    if shard is not None:
        return int(shard.numel())
    return int(tensor.to_local().numel()) if _is_dtensor(tensor) else _size(tensor)


def _stored_bytes(tensor: Any) -> int:
    return (_stored(tensor) if _packing(tensor) is None else int(tensor.numel())) * int(tensor.element_size())


def _unique(tensors: list[torch.Tensor], topology: Topology) -> int | None:
    """Sum of global sizes: DTensor and ZeRO-3 have theirs; beside DTensors a plain tensor is a replica."""
    sharded_alike = topology.sizes.get("tp", 1) * topology.sizes.get("ep", 1) == 1
    known = sharded_alike or any(_is_dtensor(tensor) for tensor in tensors)
    marked = any(hasattr(tensor, "tensor_model_parallel") for tensor in tensors)  # Megatron's word for a shard
    if not known and not marked:
        return None
    tp_size = topology.sizes.get("tp", 1)
    return sum(
        int(getattr(tensor, "ds_numel", _size(tensor))) * (tp_size if _is_megatron_shard(tensor) else 1)
        for tensor in tensors
    )


def _is_megatron_shard(tensor: torch.Tensor) -> bool:
    return bool(getattr(tensor, "tensor_model_parallel", False)) and not _is_dtensor(tensor)
