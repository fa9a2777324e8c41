"""How tensors of all kinds that a model holds are put back: theirs are the place, the content and the memory."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

Undo = Callable[[], None]

COMPRESSED = frozenset((torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc))


def undo_of(tensor: torch.Tensor) -> Undo:
    """How to put a tensor back to where it lies now, with the content that it has now.

    Raises:
        Exception: That cannot be done with tensors of its kind, as a first try shows.
    """
    if _is_wrapper(tensor):
        return _inner_kept(tensor)
    with torch.inference_mode(tensor.is_inference()):
        place = tensor.detach()  # where it lies, should it come to lie elsewhere
        place_once = _written_once(place)
        undo = functools.partial(_restore_tensor, tensor, place, place_once, place_once.clone(), _num_bytes(place_once))
    undo()
    return undo


def _is_wrapper(tensor: torch.Tensor) -> bool:
    return is_traceable_wrapper_subclass(tensor)


def _inner_kept(tensor: torch.Tensor) -> Undo:
    """Of what is made of other tensors: those."""
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
    """What can be written as a whole; what was expanded cannot, and what is nested has no strides."""
    if place.layout is not torch.strided:
        return place
    if place.is_nested:
        return place.values()
    return place[tuple(slice(0, 1) if not step else slice(None) for step in place.stride())]


def _num_bytes(tensor: torch.Tensor) -> int:
    """Of its memory, which scripts may give back while the tensor stays."""
    return tensor.untyped_storage().nbytes() if tensor.layout is torch.strided else 0


def _restore_tensor(tensor: torch.Tensor, place: torch.Tensor, place_once: torch.Tensor, before: torch.Tensor,
                    num_bytes: int) -> None:
    # by way of .data: a graph of the user's that waits for its backward must not see a new version
    if _num_bytes(place_once) < num_bytes:
        place_once.untyped_storage().resize_(num_bytes)
    if tensor.is_inference():
        with torch.inference_mode():
            place_once.copy_(before)
        return
    if place.layout in COMPRESSED:
        place.data.copy_(before)
        return
    if place.layout is not torch.strided:  # to copy would exchange what lies within `place` alone
        tensor.data = before
        return
    place_once.data.copy_(before)
    if not _lies_at(tensor, place):
        tensor.data = place


def _lies_at(tensor: torch.Tensor, place: torch.Tensor) -> bool:
    if tensor.is_quantized or tensor.is_nested:  # for which torch cannot tell
        return tensor.data_ptr() == place.data_ptr() and tensor.numel() == place.numel()
    return tensor.is_set_to(place)
