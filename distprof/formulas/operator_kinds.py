"""What operators without a FLOP formula are: their kind, and the number of elements that they work on.

The kind of an operator without a FLOP formula: by its name, by the tags that torch gives it, by the aliases of its
schema.

Number of elements that an operator other than a contraction works on. That is the size of its output, except for norms,
pools, losses, softmax and reductions (size of the input), and for optimizers and `_foreach_*` (size of all parameters,
the first list). Views count 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from distprof.formulas.dispatched_call import name_of
from distprof.model.tensors import tensors
from distprof.shape_formulas.kind_names import KIND_OF, bare_names
from distprof.shape_formulas.operator_cost import OperatorKind


@cache
def kind_without_formula(func: object) -> OperatorKind:
    """The kind of an operator; `other` if neither the table nor torch classifies it."""
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
    # torch tags neither every overload nor prims: take the tags of all overloads of the same name
    spaces = (func.namespace, "aten")
    packets = [getattr(getattr(torch.ops, space), name, None) for space in spaces for name in names]
    tags = set(func.tags).union(*(
        getattr(packet, overload).tags for packet in packets if packet is not None for overload in packet.overloads()))
    return next((kind for tag, kind in _TAGS if tag in tags), "other")


_KIND_OF_TAG: tuple[tuple[str, OperatorKind], ...] = (
    ("pointwise", "elementwise"), ("reduction", "reduction"), ("view_copy", "copy"),
)
# torch 2.8 has no tag for reductions; torch's own are named above
_TAGS = tuple((getattr(torch.Tag, tag), kind) for tag, kind in _KIND_OF_TAG if hasattr(torch.Tag, tag))


BY_INPUT: frozenset[OperatorKind] = frozenset({"norm", "pool", "loss", "softmax", "reduction"})
WITHOUT_ELEMENTS: frozenset[OperatorKind] = frozenset({"view", "contraction", "estimate", "other"})
INPUT_NAMES = ("input", "self", "input1")
"""Names of the argument that holds the input, tried in this order."""


def element_count(kind: OperatorKind, arguments: dict[str, Any], output: object) -> int:
    """Elements that one call works on.

    Args:
        kind: What the operator does.
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
