"""Cost of an operator: one call comes in; MACs, element counts and bytes go out.

One table, operator -> small function of shapes. A function gives multiply-accumulates (MACs) of contractions: matrix
products, convolutions, attention, recurrent layers. A MAC is two FLOPs. Additions of a bias are not counted.
Everything else is an element count with a kind (`kinds.py`, `elements.py`), or an estimate, and never in the FLOPs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from distprof.formulas.attention import ATTENTION
from distprof.formulas.call import Call, name_of
from distprof.formulas.convolution import CONVOLUTION
from distprof.formulas.cost import Cost, Kind, Macs
from distprof.formulas.elements import elements
from distprof.formulas.estimates import ESTIMATES
from distprof.formulas.flex import FLEX
from distprof.formulas.kinds import kind_without_formula
from distprof.formulas.libraries import LIBRARIES
from distprof.formulas.matmul import MATMUL, WHOLE
from distprof.formulas.quantized import QUANTIZED
from distprof.formulas.recurrent import RECURRENT
from distprof.formulas.registry import registered, registered_flops
from distprof.formulas.traffic import traffic

__all__ = ["MACS", "Cost", "cost", "flops", "has_formula", "kind_of", "name_of"]

MACS: dict[str, Callable[[Call], int | Macs]] = {
    **MATMUL, **CONVOLUTION, **ATTENTION, **FLEX, **RECURRENT, **QUANTIZED, **LIBRARIES,
}
"""Operator by its qualified name, all overloads -> MACs of one call."""


def has_formula(func: Any, kwargs: dict[str, Any] | None = None) -> bool:
    """True where the FLOPs of an operator are known; a Triton kernel is known by the `kwargs` of its launch."""
    return registered(func, kwargs or {}) is not None or name_of(func) in MACS or _of_torch(func) is not None


def flops(func: Any, args: Sequence[Any], kwargs: dict[str, Any], output: Any) -> int | None:
    """FLOPs of one call, 2 per multiply-accumulate; None where no formula is known.

    Args:
        func: The operator overload, like `torch.ops.aten.mm.default`, or a higher-order operator.
        args: Positional arguments of the call; tensors have the shapes of this rank.
        kwargs: Keyword arguments of the call.
        output: What the call returned.

    Raises:
        FormulaError: A formula that a user registered raised or answered nonsense.
    """
    found = _contraction(func, args, kwargs, output)
    return None if found is None else 2 * found[0].full + found[1]


def kind_of(func: Any) -> Kind:
    """What an operator does; `other` where nobody knows."""
    return "contraction" if has_formula(func) else _kind_without_formula(func)


def _kind_without_formula(func: Any) -> Kind:
    return "estimate" if name_of(func) in ESTIMATES else kind_without_formula(func)


def cost(func: Any, args: Sequence[Any], kwargs: dict[str, Any], output: Any) -> Cost:
    """Everything known of one call; arguments and errors as in `flops`."""
    found = _contraction(func, args, kwargs, output)
    kind: Kind = "contraction" if found is not None else _kind_without_formula(func)
    if kind == "view":
        return Cost(kind=kind, counted=True)
    call = Call.of(func, args, kwargs, output)
    moved = traffic(func, kind, call)
    if found is None:
        guess = ESTIMATES[name_of(func)](call) if kind == "estimate" else 0
        return Cost(kind=kind, elements=elements(kind, call.arguments, output), read_bytes=moved.read,
                    write_bytes=moved.write, counted=kind != "other", estimated=kind == "estimate",
                    estimate_flops=round(guess))
    macs, remainder = found
    return Cost(macs=macs.full, causal_macs=macs.causal, recompute_macs=macs.recompute, remainder=remainder,
                kind=kind, read_bytes=moved.read, write_bytes=moved.write, counted=True, note=macs.note)


def _contraction(func: Any, args: Sequence[Any], kwargs: dict[str, Any], output: Any) -> tuple[Macs, int] | None:
    """MACs and the odd FLOP; None where there is no formula."""
    own = registered(func, kwargs)
    if own is not None:
        macs, remainder = divmod(registered_flops(*own, args, kwargs, output), 2)
        return Macs.of(macs), remainder
    formula = MACS.get(name_of(func)) or WHOLE.get(name_of(func))
    if formula is not None:
        return Macs.of(formula(Call.of(func, args, kwargs, output))), 0
    # what users registered with torch for operators of their own
    torchs = _of_torch(func)
    if torchs is None:
        return None
    macs, remainder = divmod(int(torchs(*args, **kwargs, out_val=output)), 2)
    return Macs.of(macs), remainder


def _of_torch(func: Any) -> Callable[..., Any] | None:
    if isinstance(func, torch._ops.OpOverload):
        formula: Callable[..., Any] | None = flop_registry.get(func.overloadpacket)
        return formula
    return None
