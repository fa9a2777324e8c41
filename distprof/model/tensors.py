"""Tensors in nested arguments and results, names of element types, and whether gradients flow through written
tensors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache, lru_cache
from types import FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import BackwardCFunction
from torch.utils._python_dispatch import is_traceable_wrapper_subclass_type
from torch.utils._pytree import SUPPORTED_NODES, tree_leaves, tree_map

from distprof.errors import UsageError

PLAIN_VALUES = frozenset({
    type(None), bool, int, float, complex, str, bytes, slice, torch.dtype, torch.device, torch.layout,
    torch.memory_format})
"""Types of values without tensors."""


def tensors(tree: object) -> list[torch.Tensor]:
    """Returns all tensors in nested tuples, lists, dicts, dataclasses and registered containers, in order."""
    found: list[torch.Tensor] = []
    return found if _all_plain(tree, found) else list(_tensors(tree, set()))


def _all_plain(tree: Any, found: list[torch.Tensor]) -> bool:
    """Collects the tensors of a tree of built-in containers and values; returns False if it contains anything else.

    Nearly all arguments are such trees, and the general method is 20 times slower.
    """
    if isinstance(tree, torch.Tensor):
        found.append(tree)
        return True
    kind = type(tree)
    if kind in PLAIN_VALUES:
        return True
    if kind is tuple or kind is list:
        parts = tree
    elif kind is dict:
        parts = tree.values()
    else:
        return tree.__class__ is kind and _is_closed(kind) and kind not in SUPPORTED_NODES
    for part in parts:  # noqa: SIM110 (all() takes twice as long)
        if not _all_plain(part, found):
            return False
    return True


@lru_cache(maxsize=1024)
def _is_closed(kind: type) -> bool:
    """Returns whether objects of this class have no parts, unless torch knows the class as a container."""
    return not issubclass(kind, (Mapping, list, tuple)) and not hasattr(kind, "__dataclass_fields__")


def _tensors(tree: object, opened: set[int]) -> Iterator[torch.Tensor]:
    for leaf in tree_leaves(tree):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif id(leaf) not in opened and (parts := _parts(leaf)):
            opened.add(id(leaf))  # containers may contain each other
            yield from _tensors(parts, opened)


def _parts(leaf: Any) -> list[Any]:
    """Returns the parts of containers that torch does not open: dataclasses, subclasses of dict, tuple and list."""
    if hasattr(type(leaf), "__dataclass_fields__"):
        return [getattr(leaf, field.name, None) for field in fields(leaf)]  # a slot may be empty
    if isinstance(leaf, Mapping):
        return list(leaf.values())
    return list(leaf) if isinstance(leaf, (tuple, list)) else []


def map_tensors(change: Callable[[torch.Tensor], torch.Tensor], tree: object) -> Any:
    """Copies nested containers and dataclasses, replacing tensors."""
    def changed(leaf: object) -> Any:
        if isinstance(leaf, torch.Tensor):
            return change(leaf)
        if not is_dataclass(leaf) or isinstance(leaf, type) or not tensors(leaf):
            return leaf
        twin: Any = type(leaf).__new__(type(leaf))  # copy.copy requires a value in every slot
        if hasattr(leaf, "__dict__"):
            vars(twin).update(vars(leaf))
        for field in fields(leaf):
            if hasattr(leaf, field.name):  # frozen ones refuse setattr
                object.__setattr__(twin, field.name, map_tensors(change, getattr(leaf, field.name)))
        return twin

    return tree_map(changed, tree)


@cache
def dtype_name(dtype: torch.dtype) -> str:
    """Returns the name of an element type in tables: torch.float32 -> "float32"."""
    return str(dtype).removeprefix("torch.")


def parts_of(tensor: torch.Tensor) -> tuple[torch.Tensor, ...] | None:
    """Returns the parts of a sparse tensor or of a subclass that wraps tensors; None for a plain tensor."""
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    if not is_traceable_wrapper_subclass_type(type(tensor)):
        return None
    whole: Any = tensor
    names, _ = whole.__tensor_flatten__()
    return tuple(part for name in names if isinstance(part := getattr(whole, name, None), torch.Tensor))


def has_data(*found: torch.Tensor | None) -> bool:
    """Returns whether the values of these tensors can be read; meta and fake tensors have none."""
    return all(tensor is None or not (tensor.is_meta or isinstance(tensor, FakeTensor)) for tensor in found)


def check_storage(tree: object) -> None:
    """Raises a UsageError if a tensor has no storage, because operators on it take no time."""
    for tensor in tensors(tree):
        if isinstance(tensor, FakeTensor) or tensor.is_meta:
            kind = "fake tensors" if isinstance(tensor, FakeTensor) else "tensors on the meta device"
            raise UsageError(f"the model and its inputs need storage, but found {kind}",
                             hint="distprof.count works without storage")


def first_tensor(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
    """Returns the first tensor of a call, positional arguments first; None without one."""
    return next(iter((*tensors(args), *tensors(kwargs))), None)


def num_rows(tensor: torch.Tensor | None) -> int | None:
    """Returns the size of the first dimension of a tensor on this rank; None without one."""
    return None if tensor is None or not tensor.dim() else int(_local(tensor).shape[0])


def num_elements(tensor: torch.Tensor) -> int:
    """Returns the number of elements of a tensor on this rank."""
    return int(_local(tensor).numel())


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def num_samples(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """Returns the size of the first dimension of the first tensor passed to a root module; None without one."""
    return num_rows(first_tensor(args, kwargs))


FORWARD = "forward"
FUNCTIONAL = "_functional_collectives.py"
ITS_AUTOGRAD = "_autograd"
"""End of the names of functions in that file whose autograd functions are in C++."""
NOT_SHARED = 2
"""Largest number of references to a storage that only one tensor uses: the tensor's own, and that of the query."""
num_users: Any = getattr(torch._C, "_storage_Use_Count", None)


def in_autograd_function() -> bool:
    """Returns whether the forward of an autograd function is running, in which gradients are off.

    Reentrant activation checkpointing calls modules in it, and repeats their forward in backward.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == FORWARD and code.co_argcount:
            first: Any = frame.f_locals.get(code.co_varnames[0])
            if BackwardCFunction in type(first).__mro__:  # not isinstance(), for which some objects run code
                return True
        elif code.co_name.endswith(ITS_AUTOGRAD) and code.co_filename.endswith(FUNCTIONAL):
            return True
        frame = frame.f_back
    return False


def reaches_autograd(written: Sequence[torch.Tensor]) -> bool | None:
    """Returns whether gradients flow through written tensors, while gradients are on; None if the tensors do not show
    it.

    Args:
        written: Tensors that an operator unknown to autograd has written.
    """
    if in_autograd_function() or any(tensor.requires_grad for tensor in written):
        return True
    return False if all(map(_is_its_own, written)) else None


def _is_its_own(tensor: torch.Tensor) -> bool:
    """Returns whether no other tensor shares these values, as `x.data` shares those of x; a single number is never part
    of an activation."""
    return tensor.numel() <= 1 or (num_users is not None and tensor.layout is torch.strided
                                   and num_users(tensor.untyped_storage()._cdata) <= NOT_SHARED)
