"""Operators and their calls as torch's dispatcher has them: names, and arguments by name.

What the cost of an operator call follows from: layers repeat the same calls.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import cache
from typing import Any

import torch

from distprof.model.tensors import PLAIN_VALUES
from distprof.shape_formulas.operator_call import OperatorCall

HIGHER_ORDER = {
    "higher_order::flex_attention": (
        "query", "key", "value", "score_mod", "block_mask", "scale", "kernel_options", "score_mod_other_buffers",
        "mask_mod_other_buffers"),
    "higher_order::flex_attention_backward": (
        "query", "key", "value", "out", "logsumexp", "grad_out", "grad_logsumexp", "fw_graph", "joint_graph",
        "block_mask", "scale", "kernel_options", "score_mod_other_buffers", "mask_mod_other_buffers"),
}
"""Argument names of higher-order operators, which have no schema."""


@cache
def name_of(func: object) -> str:
    """Qualified name without overload: `aten::mm`, `higher_order::flex_attention`."""
    if isinstance(func, torch._ops.OpOverload):
        return str(func._schema.name)
    if isinstance(func, torch._ops.OpOverloadPacket):
        return str(func._qualified_op_name)
    if isinstance(func, torch._ops.HigherOrderOperator):
        return f"higher_order::{func.name()}"
    return getattr(func, "__name__", type(func).__name__)


@cache
def _signature(func: object) -> tuple[tuple[str, ...], dict[str, Any]]:
    if not isinstance(func, torch._ops.OpOverload):
        return HIGHER_ORDER.get(name_of(func), ()), {}
    schema = func._schema.arguments
    defaults = {argument.name: argument.default_value for argument in schema if argument.has_default_value()}
    return tuple(argument.name for argument in schema), defaults


def dispatched_call(func: object, args: Sequence[Any], kwargs: dict[str, Any], output: object) -> OperatorCall:
    """Names positional arguments and adds the defaults of arguments that were left out."""
    names, defaults = _signature(func)
    return OperatorCall(defaults | dict(zip(names, args, strict=False)) | kwargs, output)


KWARGS, OUTPUT, TENSOR, MANY = object(), object(), object(), object()
"""What comes next in a key; no argument is one of these."""


def call_key(func: object, args: Sequence[Any], kwargs: dict[str, Any], output: object) -> Hashable | None:
    """What the cost of a call follows from; None where a call has anything but strided tensors and plain values.

    One with a size that is not known yet cannot be hashed.

    A tensor that is passed twice is read once, and one that comes back was changed in place: both are told apart from
    calls with as many tensors as they seem to have. The operator goes in as its `id`: who keeps a key keeps it alive.
    """
    seen: list[int] = []
    key: list[Hashable] = [id(func)]
    try:
        _add_specs(args, key, seen)
        if kwargs:
            key.append(KWARGS)
            _add_specs(kwargs, key, seen)
            _add_specs(kwargs.values(), key, seen)
        key.append(OUTPUT)
        _add_specs((output,), key, seen)
    except TypeError:  # a tensor of another kind
        return None
    distinct = len({*seen})
    key.append(tuple(map(seen.index, seen)) if distinct < len(seen) else distinct)
    return tuple(key)


def _add_specs(values: Iterable[Any], key: list[Hashable], seen: list[int]) -> None:
    # one flat list: every operator call comes here, and each function more that Python enters can be measured
    for value in values:
        kind = type(value)
        if kind is torch.Tensor or kind is torch.nn.Parameter:
            if value.layout is not torch.strided or value.is_nested:
                raise TypeError
            seen.append(id(value))
            key += (TENSOR, value.shape, value.stride(), value.dtype)
        elif kind in PLAIN_VALUES:
            key.append(value)
        elif kind is tuple or kind is list:
            key += (MANY, len(value))
            _add_specs(value, key, seen)
        else:
            raise TypeError
