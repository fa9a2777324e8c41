"""Composite operators: what a device has no kernel for, torch makes of other operators, and a mode should see those.

In inference mode (and under higher-order operators) einsum, matmul, conv2d and the like reach a mode whole.
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
KEYS = {"cpu": "CPU", "cuda": "CUDA", "meta": "Meta", "mps": "MPS", "xpu": "XPU", "hpu": "HPU", "mtia": "MTIA"}


def take_apart(mode: TorchDispatchMode, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Runs a composite operator so that the mode sees its parts; computes what the operator would have.

    Args:
        mode: The mode whose `__torch_dispatch__` got the call, and which is off meanwhile.
        func: The operator.
        args: Its positional arguments.
        kwargs: Its keyword arguments.

    Returns:
        What the operator returns, or NotImplemented where it is not composite on this device: it has a kernel, and
        taking it apart would compute something else than the job does.
    """
    # torch asks fake tensors for their device through prim:: operators, which do not even exist for the dispatcher
    if not isinstance(func, torch._ops.OpOverload) or func.namespace == "prim":
        return NotImplemented
    found = tensors((list(args), kwargs))
    nested = any(tensor.is_nested for tensor in found)
    if not is_composite(func, found[0].device.type if found else "cpu", nested=nested):
        return NotImplemented
    with mode:
        # func.decompose prefers Python decompositions, which round otherwise than the kernels
        return func._op_dk(COMPOSITE_NESTED if nested and _has(func, COMPOSITE_NESTED.name) else COMPOSITE,
                           *args, **kwargs)


@cache
def is_composite(func: Any, device: str, *, nested: bool = False) -> bool:
    """True where the dispatcher would take the operator apart on a device; nested tensors have kernels of their own."""
    if not _has(func, COMPOSITE.name) or _has(func, "CompositeExplicitAutograd"):
        return False
    return device not in KEYS or not _has(func, f"NestedTensor{KEYS[device]}" if nested else KEYS[device])


def _has(func: Any, key: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key)
