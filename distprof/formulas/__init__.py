"""FLOP formulas: the cost of one call of an operator.

`MACS` maps each operator to a small function of shapes that returns the multiply-accumulates (MACs) of a contraction:
matrix product, convolution, attention or recurrent layer. A MAC is two FLOPs, or eight for complex numbers; adding a
bias is not counted. All other operators have a kind and an element count (`dispatched_call.py`) or an estimate
(`estimates.py`), which are never part of the FLOPs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from distprof.formulas.bytes_moved import bytes_moved
from distprof.formulas.contractions import LOOK_AT_VALUES, MACS
from distprof.formulas.dispatched_call import dispatched_call, element_count, kind_without_formula, name_of
from distprof.formulas.user_formulas import any_registered, registered, registered_flops
from distprof.shape_formulas.estimates import ESTIMATES
from distprof.shape_formulas.matmul import NESTED_MATMUL
from distprof.shape_formulas.operator_call import Cost, Macs, OperatorKind, real_share

__all__ = ["MACS", "Cost", "cost", "follows_from_shapes", "has_formula", "name_of"]

def has_formula(func: object, kwargs: dict[str, Any] | None = None) -> bool:
    """Returns whether an operator has a formula; a Triton kernel is identified by the `kwargs` of its launch."""
    return registered(func, kwargs or {}) is not None or name_of(func) in MACS or _torch_formula(func) is not None


def cost(func: object, args: Sequence[Any], kwargs: dict[str, Any], output: object) -> Cost:
    """Returns the cost of one call.

    Args:
        func: The operator overload, like `torch.ops.aten.mm.default`, or a higher-order operator.
        args: Positional arguments of the call; tensors have the shapes of this rank.
        kwargs: Keyword arguments of the call.
        output: The result of the call.

    Returns:
        The cost.

    Raises:
        FormulaError: A formula of a user raised or did not return an int >= 0.
    """
    found = _contraction(func, args, kwargs, output)
    kind: OperatorKind = "contraction"
    if found is None:
        kind = "estimate" if name_of(func) in ESTIMATES else kind_without_formula(func)
    if kind == "view":
        return Cost(kind=kind, counted=True)
    call = dispatched_call(func, args, kwargs, output)
    moved = bytes_moved(func, kind, call)
    if found is None:
        guess = ESTIMATES[name_of(func)](call) if kind == "estimate" else 0
        return Cost(kind=kind, elements=element_count(kind, call.arguments, output), read_bytes=moved.read,
                    write_bytes=moved.write, counted=kind != "other", estimate_flops=round(guess))
    macs, remainder = found
    return Cost(macs=macs.full, causal_macs=macs.causal, recompute_macs=macs.recompute, remainder=remainder,
                kind=kind, read_bytes=moved.read, write_bytes=moved.write, counted=True, note=macs.note)


def follows_from_shapes(func: object) -> bool:
    """Returns whether calls with equal `call_key` have equal costs: no formula depends on values or comes from a
    user."""
    name = name_of(func)
    if any_registered() or name in LOOK_AT_VALUES or not isinstance(func, torch._ops.OpOverload):
        return False
    return name in MACS or _torch_formula(func) is None


def _contraction(func: object, args: Sequence[Any], kwargs: dict[str, Any], output: object) -> tuple[Macs, int] | None:
    """Returns the MACs, and 1 if the number of FLOPs is odd; None without a formula."""
    own = registered(func, kwargs)
    if own is not None:
        number, remainder = divmod(registered_flops(*own, args, kwargs, output), 2)
        return Macs.of(number), remainder
    formula = MACS.get(name_of(func)) or NESTED_MATMUL.get(name_of(func))
    if formula is not None:
        call = dispatched_call(func, args, kwargs, output)
        factor, why = real_share(name_of(func), call.arguments)
        macs = Macs.of(formula(call))
        # half a MAC may be left over, which is an odd FLOP
        return (macs, 0) if factor == 1 else (macs.times(factor, why), int(2 * macs.full * factor) % 2)
    of_torch = _torch_formula(func)
    if of_torch is None:
        return None
    number, remainder = divmod(int(of_torch(*args, **kwargs, out_val=output)), 2)
    return Macs.of(number), remainder


def _torch_formula(func: object) -> Callable[..., Any] | None:
    """Returns the operator's formula in torch's own flop counter, where users may register formulas; None if there is
    none."""
    if isinstance(func, torch._ops.OpOverload):
        formula: Callable[..., Any] | None = flop_registry.get(func.overloadpacket)
        return formula
    return None
