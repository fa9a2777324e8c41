"""The tensors in nested arguments and results, and names of element types."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from distprof.errors import UsageError


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


def check_storage(tree: Any) -> None:
    """Raises a UsageError if a tensor takes no memory, so that work with it takes no time."""
    for tensor in tensors(tree):
        if isinstance(tensor, FakeTensor) or tensor.is_meta:
            kind = "fake tensors" if isinstance(tensor, FakeTensor) else "tensors on the meta device"
            raise UsageError(f"expected a model and inputs with storage, found {kind}",
                             hint="distprof.count needs no storage")


def num_samples(args: Any, kwargs: Any) -> int | None:
    """First dimension of the first tensor that went into a root module; None without one."""
    first = next(iter((*tensors(args), *tensors(kwargs))), None)
    if first is None or not first.dim():
        return None
    local = first.to_local() if hasattr(first, "to_local") else first
    return int(local.shape[0])
