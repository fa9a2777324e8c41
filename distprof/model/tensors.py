"""The tensors in nested arguments and results, and names of element types."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves


def tensors(tree: Any) -> list[torch.Tensor]:
    """All tensors in nested tuples, lists, dicts and registered containers, in order."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    if tree is None:
        return []
    if isinstance(tree, (tuple, dict)) and len(tree) < 2:  # most module calls; the general way is 20 times slower
        return [found for part in (tree.values() if isinstance(tree, dict) else tree) for found in tensors(part)]
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def dtype_name(dtype: torch.dtype) -> str:
    """An element type as tables have it: torch.float32 -> "float32"."""
    return str(dtype).removeprefix("torch.")


def without_storage(tree: Any) -> str | None:
    """What kind of tensor there is that takes no memory, so that nothing takes time; None where all have storage."""
    found = tensors(tree)
    if any(isinstance(tensor, FakeTensor) for tensor in found):
        return "fake tensors"
    return "tensors on the meta device" if any(tensor.is_meta for tensor in found) else None


def num_samples(args: Any, kwargs: Any) -> int | None:
    """First dimension of the first tensor that went into a root module; None without one."""
    first = next(iter((*tensors(args), *tensors(kwargs))), None)
    if first is None or not first.dim():
        return None
    local = first.to_local() if hasattr(first, "to_local") else first
    return int(local.shape[0])
