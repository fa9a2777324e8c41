"""Number of elements that an operator other than a contraction works on.

That is the size of its output, except for norms, pools, losses, softmax and reductions (size of the input), and for
optimizers and `_foreach_*` (size of all parameters, the first list). Views count 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from distprof.model.tensors import tensors
from distprof.shape_formulas.operator_cost import OperatorKind

BY_INPUT: frozenset[OperatorKind] = frozenset({"norm", "pool", "loss", "softmax", "reduction"})
WITHOUT_ELEMENTS: frozenset[OperatorKind] = frozenset({"view", "contraction", "estimate", "other"})
INPUT_NAMES = ("input", "self", "input1")
"""Names of the argument that holds the input, tried in this order."""


def element_count(kind: OperatorKind, arguments: dict[str, Any], output: Any) -> int:
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
