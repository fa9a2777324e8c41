"""Splits composite operators into the operators that torch runs for them, so that a dispatch mode sees those.

Only in inference mode and under higher-order operators does a mode get einsum, matmul, conv2d and the like whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from distprof.model.tensors import tensors

COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
COMPOSITE_NESTED = torch._C.DispatchKey.CompositeImplicitAutogradNestedTensor
DEVICE_KEYS = {"cpu": "CPU", "cuda": "CUDA", "meta": "Meta", "mps": "MPS", "xpu": "XPU", "hpu": "HPU", "mtia": "MTIA"}


def run_parts(mode: TorchDispatchMode, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Runs a composite operator such that the mode sees its parts; the result is that of the operator.

    Args:
        mode: The mode whose `__torch_dispatch__` got the call; torch has switched it off meanwhile.
        func: The operator.
        args: Its positional arguments.
        kwargs: Its keyword arguments.

    Returns:
        The result, or NotImplemented if the operator has a kernel on this device: splitting it would run other code
        than the job does.
    """
    # fake tensors call prim:: operators for their device; the dispatcher does not have these
    if not isinstance(func, torch._ops.OpOverload) or func.namespace == "prim":
        return NotImplemented
    found = tensors((list(args), kwargs))
    nested = any(tensor.is_nested for tensor in found)
    if not is_composite(func, found[0].device.type if found else "cpu", nested=nested):
        return NotImplemented
    with mode:
        # func.decompose prefers Python decompositions, which round differently from the kernels
        return func._op_dk(COMPOSITE_NESTED if nested and _has(func, COMPOSITE_NESTED.name) else COMPOSITE,
                           *args, **kwargs)


@cache
def is_composite(func: Any, device: str, *, nested: bool = False) -> bool:
    """True if the dispatcher would split the operator on a device; nested tensors have kernels of their own."""
    if not _has(func, COMPOSITE.name) or _has(func, "CompositeExplicitAutograd"):
        return False
    key = DEVICE_KEYS.get(device)
    return key is None or not _has(func, f"NestedTensor{key}" if nested else key)


def _has(func: Any, key: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key)
