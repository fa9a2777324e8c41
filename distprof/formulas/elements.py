"""Elements a call works on that contracts nothing: the call and its kind come in, one number goes out.

Counted are the elements of the output, except where the work is on what comes in: norms, pools, losses, softmax,
reductions (the input), optimizers and `_foreach_*` (all parameters, the first list). Copies of views count 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from distprof.formulas.cost import Kind
from distprof.model.tensors import tensors

BY_INPUT: frozenset[Kind] = frozenset({"norm", "pool", "loss", "softmax", "reduction"})
NONE: frozenset[Kind] = frozenset({"view", "contraction", "estimate", "other"})
PROBED = ("input", "self", "input1")
"""Names of the argument the work is on, in the order they are looked for."""


def elements(kind: Kind, arguments: dict[str, Any], output: Any) -> int:
    """Elements one call works on.

    Args:
        kind: What the operator does.
        arguments: The call's arguments by name, in the order of the schema.
        output: What the call returned.
    """
    if kind in NONE:
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
    for name in PROBED:
        if isinstance(arguments.get(name), (torch.Tensor, list, tuple)):
            return tensors(arguments[name])
    return tensors(list(arguments.values()))[:1]


def _first_list(arguments: dict[str, Any]) -> int:
    first: Sequence[Any] = next((value for value in arguments.values() if isinstance(value, (list, tuple))), ())
    return sum(_numel(tensor) for tensor in first if isinstance(tensor, torch.Tensor)) or sum(
        map(_numel, tensors(list(arguments.values()))[:1]))
