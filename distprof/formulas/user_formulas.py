"""FLOP formulas that users register for their own operators and Triton kernels."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

import torch

from distprof.errors import FormulaError, UsageError
from distprof.formulas.contractions import MACS
from distprof.formulas.dispatched_call import name_of

UserFormula = Callable[..., int]
F = TypeVar("F", bound=UserFormula)

REGISTERED: dict[str, UserFormula] = {}
"""`mylib::op` (every overload), `mylib::op.overload`, `higher_order::name` or `triton::kernel` -> formula."""

NAME = re.compile(r"[A-Za-z_]\w*::[A-Za-z_][\w.]*")
TRITON = ("higher_order::triton_kernel_wrapper_mutation", "higher_order::triton_kernel_wrapper_functional")


@overload
def register_flops(op: object, formula: F, *, replace: bool = False) -> F: ...
@overload
def register_flops(op: object, formula: None = None, *, replace: bool = False) -> Callable[[F], F]: ...
def register_flops(op: object, formula: Callable[..., Any] | None = None, *, replace: bool = False) -> Any:
    """Registers a formula for the FLOPs of an operator; also works as a decorator.

        distprof.register_flops("mylib::op", lambda x, weight, *, out: 2 * x.numel() * weight.shape[-1])

        @distprof.register_flops("mylib::other")
        def other_flops(x, *, out): ...

    Args:
        op: `"mylib::op"` for all overloads, `"mylib::op.overload"` for one, `torch.ops.mylib.op`, one of its
            overloads, a higher-order operator, or a Triton kernel: the object that `@triton.jit` or
            `@triton.autotune` returned, or `"triton::kernel_name"`. The operator does not have to exist yet.
        formula: `formula(*args, **kwargs, out) -> int`. It gets the arguments as torch's dispatcher passes them:
            those before the `*` of the schema by position, keyword-only ones by name, trailing ones omitted if they
            have their defaults (so give the formula the same defaults). Tensors have the shapes of this rank (the local
            part of a DTensor), and no data on a meta or fake device. `out` is the result of the call. The formula must
            not change any of them. The formula of a Triton kernel gets the arguments of the kernel by name, constexpr
            ones included, and `grid`, a tuple of launch sizes if it is concrete, but no `out`: kernels return nothing.
            It returns FLOPs, an int >= 0, 2 per multiply-accumulate. They are part of the total FLOPs.
        replace: Whether to replace an existing formula of the operator, by distprof or registered.

    Returns:
        The formula, or a decorator if none was given.

    Raises:
        UsageError: The name is malformed, `op` is not an operator, the formula cannot be called, or the operator
            already has a formula.
        FormulaError: Later, when a call is counted: the formula raised or did not return an int >= 0.
    """
    key = _key(op)
    if formula is None:
        return lambda function: register_flops(op, function, replace=replace)
    if not callable(formula):
        raise UsageError(f"the formula of {key} must be a function, not {formula!r}",
                         hint="formula(*args, **kwargs, out) -> FLOPs of the call")
    if not replace and _known(key):
        raise UsageError(f"{key} already has a formula",
                         hint="replace it with register_flops(..., replace=True)")
    REGISTERED[key] = formula
    return formula


def _known(key: str) -> bool:
    return key in REGISTERED or key.removesuffix(".default") in MACS


def _key(op: object) -> str:
    if isinstance(op, str):
        if not NAME.fullmatch(op):
            raise UsageError(f"{op!r} is not an operator name like 'mylib::op'",
                             hint="torch.ops.mylib.op is called 'mylib::op', a Triton kernel 'triton::kernel_name'")
        return op
    if isinstance(op, torch._ops.OpOverload):
        return f"{op._schema.name}.{op._overloadname}"
    if isinstance(op, (torch._ops.OpOverloadPacket, torch._ops.HigherOrderOperator)):
        return name_of(op)
    if hasattr(op, "_opoverload"):  # result of torch.library.custom_op or triton_op
        return name_of(op._opoverload)
    kernel = kernel_name(op)
    if kernel is None:
        raise UsageError(f"expected an operator, its name or a Triton kernel, not {op!r}",
                         hint="'mylib::op', torch.ops.mylib.op or a @triton.jit function")
    return f"triton::{kernel}"


def kernel_name(kernel: Any) -> str | None:
    """Returns `module.function` of a Triton kernel; None for other objects.

    The attribute `fn` of an autotuner is its kernel, and that of a kernel is its Python function.
    """
    if not hasattr(kernel, "fn"):
        return None
    while hasattr(kernel, "fn"):
        kernel = kernel.fn
    return f"{kernel.__module__}.{kernel.__qualname__}"


def any_registered() -> bool:
    """Returns whether any formula is registered."""
    return bool(REGISTERED)


def registered(func: object, kwargs: dict[str, Any]) -> tuple[str, UserFormula] | None:
    """Returns name and formula that a user registered for an operator; None if there is none."""
    for key in _keys(func, kwargs) if REGISTERED else ():
        if key in REGISTERED:
            return key, REGISTERED[key]
    return None


def _keys(func: object, kwargs: dict[str, Any]) -> tuple[str, ...]:
    name = name_of(func)
    if name in TRITON and "kernel_idx" in kwargs:
        kernel = kernel_name(_kernel(kwargs["kernel_idx"])) or ""
        return f"triton::{kernel}", f"triton::{kernel.rpartition('.')[2]}", name
    overload_name = getattr(func, "_overloadname", None)
    return (name,) if overload_name is None else (f"{name}.{overload_name}", name)


def _kernel(index: int) -> Any:
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    return kernel_side_table.get_kernel(index)


def registered_flops(name: str, formula: UserFormula, args: Sequence[Any], kwargs: dict[str, Any],
                     output: object) -> int:
    """Calls the formula of a user and checks the result.

    Raises:
        FormulaError: The formula raised or did not return an int >= 0.
    """
    given = _kernel_arguments(kwargs) if name.startswith("triton::") else kwargs | {"out": output}
    try:
        answer = formula(*args, **given)
    except Exception as error:
        raise FormulaError(f"the formula registered for {name} raised {type(error).__name__}: {error}",
                           hint="a formula gets the arguments of the call and out=; see distprof.register_flops"
                           ) from error
    try:
        if isinstance(answer, bool) or (flops := operator.index(answer)) < 0:
            raise TypeError
    except TypeError:
        raise FormulaError(f"the formula registered for {name} must return an int >= 0, not {answer!r}",
                           hint="return FLOPs as an int, 2 per multiply-accumulate") from None
    return flops


def _kernel_arguments(kwargs: dict[str, Any]) -> dict[str, Any]:
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    constants: dict[str, Any] = kernel_side_table.get_constant_args(kwargs["constant_args_idx"])
    grid = kwargs["grid"]
    given: dict[str, Any] = {"grid": grid[0] if len(grid) == 1 else grid} | constants | kwargs["kwargs"]
    return given
