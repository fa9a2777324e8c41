"""The kind of an operator without a FLOP formula: by its name, by the tags that torch gives it, by the aliases of its
schema.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from distprof.formulas.dispatched_call import name_of
from distprof.shape_formulas.kind_names import KIND_OF, bare_names
from distprof.shape_formulas.operator_cost import OperatorKind


@cache
def kind_without_formula(func: Any) -> OperatorKind:
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
