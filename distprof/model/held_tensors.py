"""Restores tensors of all kinds that a model holds: their place in memory, their content, and freed memory."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

Undo = Callable[[], None]

COMPRESSED = frozenset((torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc))


def undo_of(tensor: torch.Tensor) -> Undo:
    """Returns a function that restores a tensor to its current place in memory and its current content.

    Raises:
        Exception: Tensors of this kind cannot be restored, as a first try showed.
    """
    if _is_wrapper(tensor):
        return _inner_kept(tensor)
    with torch.inference_mode(tensor.is_inference()):
        place = tensor.detach()  # the current place, in case it is moved
        place_once = _written_once(place)
        undo = functools.partial(_restore_tensor, tensor, place, place_once, place_once.clone(), _num_bytes(place_once))
    undo()
    return undo


def _is_wrapper(tensor: torch.Tensor) -> bool:
    return is_traceable_wrapper_subclass(tensor)


def _inner_kept(tensor: torch.Tensor) -> Undo:
    """Returns a function that restores a tensor that consists of others, by restoring these."""
    names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    inner = {name: getattr(tensor, name) for name in names}
    undo = [undo_of(one) for one in inner.values()]

    def put_back() -> None:
        for name, one in inner.items():
            if getattr(tensor, name) is not one:
                setattr(tensor, name, one)
        for each in undo:
            each()

    return put_back


def _written_once(place: torch.Tensor) -> torch.Tensor:
    """Returns a view of all elements that can be written at once: expanded tensors have elements several times, and
    nested tensors have no strides."""
    if place.layout is not torch.strided:
        return place
    if place.is_nested:
        return place.values()
    return place[tuple(slice(0, 1) if not step else slice(None) for step in place.stride())]


def _num_bytes(tensor: torch.Tensor) -> int:
    """Returns the bytes of its storage, which scripts may free while the tensor exists."""
    return tensor.untyped_storage().nbytes() if tensor.layout is torch.strided else 0


def _restore_tensor(tensor: torch.Tensor, place: torch.Tensor, place_once: torch.Tensor, before: torch.Tensor,
                    num_bytes: int) -> None:
    # through .data: a graph of the user that awaits its backward must not see a new version
    if _num_bytes(place_once) < num_bytes:
        place_once.untyped_storage().resize_(num_bytes)
    if tensor.is_inference():
        with torch.inference_mode():
            place_once.copy_(before)
        return
    if place.layout in COMPRESSED:
        place.data.copy_(before)
        return
    if place.layout is not torch.strided:  # copying would only replace the parts of `place`
        tensor.data = before
        return
    place_once.data.copy_(before)
    if not _lies_at(tensor, place):
        tensor.data = place


def _lies_at(tensor: torch.Tensor, place: torch.Tensor) -> bool:
    if tensor.is_quantized or tensor.is_nested:  # torch cannot tell for these
        return tensor.data_ptr() == place.data_ptr() and tensor.numel() == place.numel()
    return tensor.is_set_to(place)
