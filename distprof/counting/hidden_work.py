"""Modules whose work no dispatch mode sees: kernels that Python launches itself, numpy, other libraries.

Such a module runs no operator that computes, and returns memory that it was not given.
"""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch import nn

from distprof.model.tensors import tensors

HOLDERS = (dict, list, set)
"""What keeps a tensor for later: attributes, caches."""


def hidden_results(module: nn.Module, args: Any, kwargs: Any, result: Any) -> list[torch.Tensor]:
    """The results of a module call that ran no operator which computes, without those that were there before it."""
    known = {_memory(tensor) for tensor in tensors((args, kwargs))}
    found = [tensor for tensor in tensors(result) if type(tensor) in (torch.Tensor, nn.Parameter)
             and tensor.numel() and tensor.dim() > 1]  # scalars and lists are mostly constants that stand in the script
    found = [tensor for tensor in found if _memory(tensor) not in known | {None}]
    if not found:
        return []
    for inner in module.modules():
        known.update(map(_memory, tensors(list(vars(inner).values()))))
        known.update(map(_memory, (*inner._parameters.values(), *inner._buffers.values())))
    return [tensor for tensor in found if _memory(tensor) not in known and not _is_kept(tensor, result, found)]


def _memory(tensor: torch.Tensor | None) -> int | None:
    """The storage of a tensor, which views share; None without one of its own (sparse, nested)."""
    try:
        return None if tensor is None else int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return None


def _is_kept(tensor: torch.Tensor, *ours: Any) -> bool:
    """True where something else holds the tensor, or the one that it is a view of: a table in a cache.

    So it is in doubt: what a program has frozen for its garbage collector is not found.
    """
    if gc.get_freeze_count():
        return True
    if tensor._is_view() and tensor._base is not None:
        tensor = tensor._base
    return any(isinstance(holder, HOLDERS) and not any(holder is own for own in ours)
               for holder in gc.get_referrers(tensor))
