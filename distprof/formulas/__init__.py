"""FLOPs of an operator: one call comes in, a count goes out, or None where no formula is known.

One table, operator -> small function of shapes. A function gives multiply-accumulates (MACs) of contractions: matrix
products, convolutions, attention, recurrent layers. A MAC is two FLOPs. Additions of a bias are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from distprof.formulas.attention import ATTENTION
from distprof.formulas.call import Call
from distprof.formulas.convolution import CONVOLUTION
from distprof.formulas.cost import Cost as Cost
from distprof.formulas.matmul import MATMUL
from distprof.formulas.recurrent import RECURRENT

MACS: dict[str, Callable[[Call], int]] = {**MATMUL, **CONVOLUTION, **ATTENTION, **RECURRENT}
"""Operator by its qualified name, all overloads -> MACs of one call."""


def has_formula(func: Any) -> bool:
    """True where the FLOPs of an operator are known."""
    return isinstance(func, torch._ops.OpOverload) and (
        func._schema.name in MACS or func.overloadpacket in flop_registry)


def flops(func: Any, args: Sequence[Any], kwargs: dict[str, Any], output: Any) -> int | None:
    """FLOPs of one call, 2 per multiply-accumulate; None where no formula is known.

    Args:
        func: The operator overload, like `torch.ops.aten.mm.default`.
        args: Positional arguments of the call; tensors have the shapes of this rank.
        kwargs: Keyword arguments of the call.
        output: What the call returned.
    """
    if not isinstance(func, torch._ops.OpOverload):
        return None
    formula = MACS.get(func._schema.name)
    if formula is not None:
        return 2 * formula(Call.of(func, args, kwargs, output))
    # what users registered with torch for operators of their own
    registered = flop_registry.get(func.overloadpacket)
    return None if registered is None else int(registered(*args, **kwargs, out_val=output))


def cost(func: Any, args: Any, kwargs: Any, output: Any) -> Cost:
    """Temporary."""
    from distprof.tensors import tensors
    f = flops(func, args, kwargs, output)
    view = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
    once = {id(tensor): tensor for tensor in tensors((args, kwargs, output))}.values()
    io = 0 if view else sum(tensor.numel() * tensor.element_size() for tensor in once)
    macs = (f or 0) // 2
    kind = "view" if view else "contraction" if f is not None else "other"
    return Cost(macs=macs, causal_macs=macs, counted=f is not None, kind=kind, read_bytes=io)  # type: ignore[arg-type]
