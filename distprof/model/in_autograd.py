"""Whether what runs now is part of what gradients pass: by the frames of the stack and by tensors."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

FORWARD = "forward"
FUNCTIONAL = "_functional_collectives.py"
ITS_AUTOGRAD = "_autograd"
"""Ends names of functions in that file whose autograd functions are in C++."""
NOT_SHARED = 2
"""Users of a storage of one tensor: the tensor, and who asks."""
num_users: Any = getattr(torch._C, "_storage_Use_Count", None)


def in_autograd_function() -> bool:
    """True inside the forward of an autograd function, which switches gradients off.

    Activation checkpointing (the reentrant kind) calls modules in there whose forward backward repeats.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == FORWARD and code.co_argcount:
            first: Any = frame.f_locals.get(code.co_varnames[0])
            if BackwardCFunction in type(first).__mro__:  # not isinstance(): some objects answer that by running code
                return True
        elif code.co_name.endswith(ITS_AUTOGRAD) and code.co_filename.endswith(FUNCTIONAL):
            return True
        frame = frame.f_back
    return False


def reaches_autograd(written: Sequence[torch.Tensor]) -> bool | None:
    """Whether gradients pass what is written here, while they are on; None where a look at the tensors does not tell.

    Args:
        written: What an operator that autograd does not know has written.
    """
    if in_autograd_function() or any(tensor.requires_grad for tensor in written):
        return True
    return False if all(map(_is_its_own, written)) else None


def _is_its_own(tensor: torch.Tensor) -> bool:
    """Whether no other tensor has these numbers, as `x.data` has those of x; one number is no part of an activation."""
    return tensor.numel() <= 1 or (num_users is not None and tensor.layout is torch.strided
                                   and num_users(tensor.untyped_storage()._cdata) <= NOT_SHARED)
