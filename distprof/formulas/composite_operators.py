"""Makes operators inside composite and higher-order operators visible to a dispatch mode.

A mode gets composite operators like einsum, matmul and conv2d whole only in inference mode and inside higher-order
operators. Higher-order operators like cond, while_loop, scan, map and checkpoint reach it as one call, which hides the
functions that they run.
Some kernels call other operators, including matrix products, that no mode sees otherwise.

Modes must also be admitted to higher-order operators. Newer versions of torch pass all of them to modes with
`supports_higher_order_operators`. In older ones (like 2.8), the call raises in the script unless the operator has a
rule for this class of modes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch._ops import HigherOrderOperator, _higher_order_ops
from torch.utils._python_dispatch import TorchDispatchMode

from distprof.formulas.dispatched_call import name_of
from distprof.model.tensors import has_data, tensors
from distprof.own import lock

COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
COMPOSITE_NESTED = torch._C.DispatchKey.CompositeImplicitAutogradNestedTensor
DEVICE_KEYS = {"cpu": "CPU", "cuda": "CUDA", "meta": "Meta", "mps": "MPS", "xpu": "XPU", "hpu": "HPU", "mtia": "MTIA"}
EXPLICIT = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
"""Dispatch keys of kernels that consist of other operators but have their own derivative."""
CALL_PRODUCTS = frozenset({
    "aten::_euclidean_dist", "aten::_trilinear", "aten::affine_grid_generator", "aten::linalg_matrix_exp",
    "aten::linalg_pinv", "torch_nn::_linear_cross_entropy_batch_chunked",
    "torch_nn::_linear_cross_entropy_batch_chunked_no_reduction",
})
"""Operators whose kernels call matrix products, used by cdist, nn.Bilinear, F.affine_grid, F.linear_cross_entropy,
..."""


def run_parts(mode: TorchDispatchMode, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Runs an operator in a way that the mode sees its parts, with the same result.

    Args:
        mode: The mode whose `__torch_dispatch__` got the call; it is off during that.
        func: The operator.
        args: Its positional arguments.
        kwargs: Its keyword arguments.

    Returns:
        The result, or NotImplemented if the operator has a kernel on this device without matrix products: splitting it
        would run other code than the job does.
    """
    if isinstance(func, torch._ops.HigherOrderOperator):
        return func(*_functions_under(mode, args), **_functions_under(mode, kwargs))
    if is_whole(func):
        return NotImplemented
    key = _key_of_parts(func, tensors((list(args), kwargs)))
    if key is None:
        return NotImplemented
    with mode:
        # func.decompose prefers Python decompositions, which round differently from the kernels
        return func._op_dk(key, *args, **kwargs)


@cache
def is_whole(func: object) -> bool:
    """Returns whether an operator has no parts on any device."""
    if not isinstance(func, torch._ops.OpOverload):
        return not isinstance(func, torch._ops.HigherOrderOperator)
    # fake tensors call prim:: operators for their device; the dispatcher does not have these
    return func.namespace == "prim" or not (_has(func, COMPOSITE.name) or name_of(func) in CALL_PRODUCTS)


def _key_of_parts(func: Callable[..., Any], found: list[torch.Tensor]) -> Any:
    """Returns the dispatch key of the kernel that calls the parts of an operator for these tensors; None to run it
    whole."""
    device = found[0].device.type if found else "cpu"
    nested = any(tensor.is_nested for tensor in found)
    if is_composite(func, device, nested=nested):
        return COMPOSITE_NESTED if nested and _has(func, COMPOSITE_NESTED.name) else COMPOSITE
    if name_of(func) not in CALL_PRODUCTS or nested:
        return None
    # kernels for a device read data, which tensors without storage do not have
    keys = (DEVICE_KEYS.get(device, ""), *EXPLICIT) if has_data(*found) else EXPLICIT
    return next((getattr(torch._C.DispatchKey, key) for key in keys if key and _has(func, key)), None)


@cache
def is_composite(func: Callable[..., Any], device: str, *, nested: bool = False) -> bool:
    """Returns whether the dispatcher would split an operator on a device; nested tensors have kernels of their own."""
    if not _has(func, COMPOSITE.name) or _has(func, "CompositeExplicitAutograd"):
        return False
    key = DEVICE_KEYS.get(device)
    return key is None or not _has(func, f"NestedTensor{key}" if nested else key)


def _has(func: Any, key: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key)


def _functions_under(mode: TorchDispatchMode, given: object) -> Any:
    """Wraps the functions among the arguments of a higher-order operator so that they run under the mode."""
    if isinstance(given, dict):
        return {name: _functions_under(mode, value) for name, value in given.items()}
    if isinstance(given, (list, tuple)) and type(given) in (list, tuple):
        return type(given)(_functions_under(mode, value) for value in given)
    if callable(given) and not isinstance(given, (torch.Tensor, type)):
        return _entered(mode, given)
    return given


def _entered(mode: TorchDispatchMode, function: Any) -> Any:
    def run(*args: Any, **kwargs: Any) -> Any:
        with mode:
            return function(*args, **kwargs)

    return run


TAKE_ALL = hasattr(TorchDispatchMode, "supports_higher_order_operators")
"""Whether this torch passes all higher-order operators to modes that support them."""

_lock = lock()
_modes: set[TorchDispatchMode] = set()
"""Modes that are on."""
_plain_init: Any = HigherOrderOperator.__init__


def admit_mode(mode: TorchDispatchMode) -> None:
    """Adds a rule for the mode to all higher-order operators, including those created until `dismiss_mode`."""
    if TAKE_ALL:
        return
    with _lock:
        _modes.add(mode)
        HigherOrderOperator.__init__ = _init_with_rules  # type: ignore[assignment, method-assign]
        for operator in list(_higher_order_ops.values()):
            _add_rule(operator, type(mode))


def dismiss_mode(mode: TorchDispatchMode) -> None:
    """Stops adding rules for the mode to new operators; existing rules have no effect while no such mode is on."""
    with _lock:
        _modes.discard(mode)
        if not _modes and HigherOrderOperator.__init__ is _init_with_rules:
            HigherOrderOperator.__init__ = _plain_init  # type: ignore[method-assign]


def _init_with_rules(operator: object, *args: Any, **kwargs: Any) -> None:
    _plain_init(operator, *args, **kwargs)
    for kind in {type(mode) for mode in _modes.copy()}:
        _add_rule(operator, kind)


def _add_rule(operator: Any, kind: type[TorchDispatchMode]) -> None:
    def rule(mode: Any, *args: Any, **kwargs: Any) -> Any:
        return mode.__torch_dispatch__(operator, (), args, kwargs)

    operator.python_key_table.setdefault(kind, rule)
