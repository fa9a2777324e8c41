"""The operators of torch's c10d library: where their arguments are, and what work they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

INPUTS = ("input_tensor", "input_tensors", "input_list", "inputs", "input", "tensors", "tensor")
"""Argument names of the tensors that a rank puts in."""
PEERS = ("dst", "src", "root_rank")
BLOCKING = ("monitored_barrier_",)
"""Operators that return when the op is over."""
MANY_WORKS = ("reduce_scatter_", "reduce_scatter_tensor_coalesced_")
"""Operators that gloo takes apart: a piece of work per input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentPlaces:
    """Where an operator has its arguments: (index, name) of each, None where it has no such argument."""

    group: tuple[int, str]
    data: tuple[int, str] | None
    peer: tuple[int, str] | None
    tag: tuple[int, str] | None
    asynchronous: tuple[int, str] | None
    splits: tuple[int, str] | None
    outputs: tuple[int, str] | None

    @classmethod
    def of(cls, overload: Any) -> ArgumentPlaces:
        """By the names in the operator's schema."""
        places = {argument.name: (index, argument.name) for index, argument in enumerate(overload._schema.arguments)}

        def first(*names: str) -> tuple[int, str] | None:
            return next((places[name] for name in names if name in places), None)

        return cls(group=places["process_group"], data=first(*INPUTS), peer=first(*PEERS), tag=first("tag"),
                   asynchronous=first("async_op"), splits=first("input_split_sizes"),
                   outputs=first("output_tensors", "output_lists"))


def works_of(operator: str, elements: list[int]) -> Sequence[int]:
    """Elements of each piece of work that gloo makes of a call, from the elements of its tensors."""
    return tuple(elements) if operator in MANY_WORKS else (sum(elements),)
