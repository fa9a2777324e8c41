"""The tensors in nested arguments and results, and names of element types."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves, tree_map

from distprof.errors import UsageError


def tensors(tree: Any) -> list[torch.Tensor]:
    """All tensors in nested tuples, lists, dicts, dataclasses and registered containers, in order."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    if tree is None:
        return []
    if isinstance(tree, (tuple, dict)) and len(tree) < 2:  # most module calls; the general way is 20 times slower
        return [found for part in (tree.values() if isinstance(tree, dict) else tree) for found in tensors(part)]
    return list(_tensors(tree, set()))


def _tensors(tree: Any, opened: set[int]) -> Iterator[torch.Tensor]:
    for leaf in tree_leaves(tree):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif id(leaf) not in opened and (parts := _parts(leaf)):
            opened.add(id(leaf))  # containers may hold each other
            yield from _tensors(parts, opened)


def _parts(leaf: Any) -> list[Any]:
    """What a container holds that torch does not open: dataclasses, subclasses of dict, tuple and list."""
    if hasattr(type(leaf), "__dataclass_fields__"):
        return [getattr(leaf, field.name, None) for field in fields(leaf)]  # a slot may be empty
    if isinstance(leaf, Mapping):
        return list(leaf.values())
    return list(leaf) if isinstance(leaf, (tuple, list)) else []


def map_tensors(change: Callable[[torch.Tensor], torch.Tensor], tree: Any) -> Any:
    """A copy of nested containers and dataclasses with other tensors."""
    def changed(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return change(leaf)
        if not is_dataclass(leaf) or isinstance(leaf, type) or not tensors(leaf):
            return leaf
        twin: Any = type(leaf).__new__(type(leaf))  # copy.copy wants a value in every slot
        if hasattr(leaf, "__dict__"):
            vars(twin).update(vars(leaf))
        for field in fields(leaf):
            if hasattr(leaf, field.name):  # frozen ones refuse setattr
                object.__setattr__(twin, field.name, map_tensors(change, getattr(leaf, field.name)))
        return twin

    return tree_map(changed, tree)


def dtype_name(dtype: torch.dtype) -> str:
    """An element type as tables have it: torch.float32 -> "float32"."""
    return str(dtype).removeprefix("torch.")


def has_data(*found: torch.Tensor | None) -> bool:
    """True if the values of these tensors can be read; meta and fake tensors have none."""
    return all(tensor is None or not (tensor.is_meta or isinstance(tensor, FakeTensor)) for tensor in found)


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
