"""Operators and their calls in torch's dispatcher: names, arguments by name, kinds, numbers of elements, and cache
keys.

`call_key` identifies calls with the same cost, because layers repeat the same calls.

The kind of an operator without a FLOP formula follows from its name, its tags in torch, or the aliases in its schema.
The number of elements that it processes is the size of its output, except for norms, pools, losses, softmax and
reductions (size of the input), and for optimizers and `_foreach_*` (size of all parameters, the first list). Views
count 0.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import cache
from typing import Any

import torch

from distprof.model.tensors import PLAIN_VALUES, tensors
from distprof.shape_formulas.kind_names import KIND_OF, bare_names
from distprof.shape_formulas.operator_call import OperatorCall, OperatorKind

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
    """Returns the qualified name without overload: `aten::mm`, `higher_order::flex_attention`."""
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
    """Returns a call with its positional arguments by name and the defaults of omitted arguments."""
    names, defaults = _signature(func)
    return OperatorCall(defaults | dict(zip(names, args, strict=False)) | kwargs, output)


KWARGS, OUTPUT, TENSOR, MANY = object(), object(), object(), object()
"""Markers in a key for what follows; arguments never equal them."""


def call_key(func: object, args: Sequence[Any], kwargs: dict[str, Any], output: object) -> Hashable | None:
    """Returns a key that determines the cost of a call; None if it has anything but strided tensors and plain values.

    The key cannot be hashed if a size is still unknown.

    The key shows which tensors are the same: a tensor that is passed twice is read once, and a returned argument was
    changed in place. The operator is represented by its `id`, so whoever keeps a key must keep the operator alive.
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
    except TypeError:  # another kind of tensor
        return None
    distinct = len({*seen})
    key.append(tuple(map(seen.index, seen)) if distinct < len(seen) else distinct)
    return tuple(key)


def _add_specs(values: Iterable[Any], key: list[Hashable], seen: list[int]) -> None:
    # one flat list, filled by one function: this runs for every operator call, and function calls are slow
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


@cache
def kind_without_formula(func: object) -> OperatorKind:
    """Returns the kind of an operator; `other` if neither the table nor torch classifies it."""
    if isinstance(func, torch._ops.OpOverload) and _is_view(func):
        return "view"
    if name_of(func).startswith(("prim::", "profiler::")):  # queries about tensors, and labels
        return "view"
    names = bare_names(name_of(func))
    for name in names:
        if name in KIND_OF:
            return KIND_OF[name]
    return _by_tags(func, names) if isinstance(func, torch._ops.OpOverload) else "other"


def _is_view(func: Any) -> bool:
    aliases = [returned.alias_info for returned in func._schema.returns]
    shares = bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)
    return shares or torch.Tag.inplace_view in func.tags


def _by_tags(func: Any, names: tuple[str, ...]) -> OperatorKind:
    if names[0].startswith("_foreach_"):
        return "optimizer"
    if names[0].endswith(("prepack", "unpack")):
        return "copy"
    # torch does not tag every overload and prim: use the tags of all overloads of the same name
    spaces = (func.namespace, "aten")
    packets = [getattr(getattr(torch.ops, space), name, None) for space in spaces for name in names]
    tags = set(func.tags).union(*(
        getattr(packet, overload).tags for packet in packets if packet is not None for overload in packet.overloads()))
    return next((kind for tag, kind in _TAGS if tag in tags), "other")


_KIND_OF_TAG: tuple[tuple[str, OperatorKind], ...] = (
    ("pointwise", "elementwise"), ("reduction", "reduction"), ("view_copy", "copy"),
)
# torch 2.8 has no tag for reductions; its own ones are in `kind_names.py`
_TAGS = tuple((getattr(torch.Tag, tag), kind) for tag, kind in _KIND_OF_TAG if hasattr(torch.Tag, tag))


BY_INPUT: frozenset[OperatorKind] = frozenset({"norm", "pool", "loss", "softmax", "reduction"})
WITHOUT_ELEMENTS: frozenset[OperatorKind] = frozenset({"view", "contraction", "estimate", "other"})
INPUT_NAMES = ("input", "self", "input1")
"""Possible names of the input argument, tried in this order."""


def element_count(kind: OperatorKind, arguments: dict[str, Any], output: object) -> int:
    """Returns the number of elements that one call processes.

    Args:
        kind: Kind of the operator.
        arguments: The call's arguments by name, in the order of the schema.
        output: What the call returned.
    """
    if kind in WITHOUT_ELEMENTS:
        return 0
    if kind == "optimizer":
        return _first_list(arguments)
    if kind in BY_INPUT:
        return sum(map(_numel, _inputs(arguments)))
    first = [output] if isinstance(output, torch.Tensor) else tensors(output) or tensors(list(arguments.values()))
    return _numel(first[0]) if first else 0


def _numel(tensor: torch.Tensor) -> int:
    return int(tensor.numel())


def _inputs(arguments: dict[str, Any]) -> list[torch.Tensor]:
    for name in INPUT_NAMES:
        if isinstance(arguments.get(name), (torch.Tensor, list, tuple)):
            return tensors(arguments[name])
    return tensors(list(arguments.values()))[:1]


def _first_list(arguments: dict[str, Any]) -> int:
    first: Sequence[Any] = next((value for value in arguments.values() if isinstance(value, (list, tuple))), ())
    return sum(_numel(tensor) for tensor in first if isinstance(tensor, torch.Tensor)) or sum(
        map(_numel, tensors(list(arguments.values()))[:1]))
