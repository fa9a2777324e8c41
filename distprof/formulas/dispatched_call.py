"""Operators and their calls as torch's dispatcher has them: names, and arguments by name."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

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
def name_of(func: Any) -> str:
    """Qualified name without overload: `aten::mm`, `higher_order::flex_attention`."""
    if isinstance(func, torch._ops.OpOverload):
        return str(func._schema.name)
    if isinstance(func, torch._ops.OpOverloadPacket):
        return str(func._qualified_op_name)
    if isinstance(func, torch._ops.HigherOrderOperator):
        return f"higher_order::{func.name()}"
    return getattr(func, "__name__", type(func).__name__)


@cache
def _signature(func: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    if not isinstance(func, torch._ops.OpOverload):
        return HIGHER_ORDER.get(name_of(func), ()), {}
    schema = func._schema.arguments
    defaults = {argument.name: argument.default_value for argument in schema if argument.has_default_value()}
    return tuple(argument.name for argument in schema), defaults


def dispatched_call(func: Any, args: Sequence[Any], kwargs: dict[str, Any], output: Any) -> OperatorCall:
    """Names positional arguments and adds the defaults of arguments that were left out."""
    names, defaults = _signature(func)
    return OperatorCall(defaults | dict(zip(names, args, strict=False)) | kwargs, output)
