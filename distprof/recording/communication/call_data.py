"""The data of a communication call, from the arguments of its c10d operator: tensors, sizes, peer, tag."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from distprof.contract.collective_ops import OP_OF_C10D, POINT_TO_POINT, WITHOUT_DATA
from distprof.model.tensors import dtype_name

INPUTS = ("input_tensor", "input_tensors", "input_list", "inputs", "input", "tensors", "tensor")
"""Names of arguments of c10d operators that hold the tensors that this rank contributes."""
OUTPUTS = ("output_tensors", "output_lists")
WRITTEN = ("outputs", "output_tensor", "output", *OUTPUTS, "tensors")
PEERS = ("dst", "src", "root_rank")
BLOCKING = ("monitored_barrier_",)
"""Operators that return when the op is over."""
MANY_WORKS = ("reduce_scatter_", "reduce_scatter_tensor_coalesced_")
"""Operators that gloo splits into one piece of work per input."""

Arguments = Mapping[str, Any]
"""Arguments of an operator by name, without those left at their default."""


def written(given: Arguments) -> list[torch.Tensor]:
    """Returns the tensors that the call writes to."""
    return _flat(_first(given, WRITTEN))


def device_of_data(operator: str, given: Arguments) -> torch.device | None:
    """Returns the device of the data; None if the call has none, as barriers."""
    data = _inputs(operator, given) or _flat(_first(given, OUTPUTS))
    return data[0].device if data else None


def data_fields(operator: str, given: Arguments, ranks: Sequence[int]) -> dict[str, Any]:
    """Returns the fields of a `CollectiveCall` that describe its data.

    Args:
        operator: Name of the c10d operator.
        given: Its arguments.
        ranks: Ranks of the group.
    """
    op, data = OP_OF_C10D[operator], _inputs(operator, given)
    elements = [tensor.numel() for tensor in data]
    sizes = [number * tensor.element_size() for number, tensor in zip(elements, data, strict=True)]
    first = next(iter(data or _flat(_first(given, OUTPUTS))), None)
    peer, splits = _first(given, PEERS), given.get("input_split_sizes")
    works = elements if operator in MANY_WORKS else [sum(elements)]
    return {
        "num_elements": sum(elements),
        "size_bytes": sum(sizes),
        "dtype": dtype_name(first.dtype) if first is not None else None,
        "peer": ranks[peer] if peer is not None and 0 <= peer < len(ranks) else None,
        "tag": given.get("tag"),
        "split_bytes": _split_bytes(splits, data, sizes, len(ranks)) if op == "all_to_all" else None,
        "work_elements": () if op in POINT_TO_POINT or operator in BLOCKING else tuple(works),
    }


def _inputs(operator: str, given: Arguments) -> list[torch.Tensor]:
    return [] if OP_OF_C10D[operator] in WITHOUT_DATA else _flat(_first(given, INPUTS))


def _first(given: Arguments, names: Sequence[str]) -> Any:
    for name in names:
        if name in given:
            return given[name]
    return None


def _flat(data: Any) -> list[torch.Tensor]:
    if isinstance(data, torch.Tensor):
        return [data]
    return [tensor for part in data or () for tensor in _flat(part)]


def _split_bytes(splits: Sequence[int] | None, data: list[torch.Tensor], sizes: list[int],
                 num_ranks: int) -> list[int] | None:
    """Returns the bytes sent to each rank of the group: by tensor, by rows of one tensor, or in equal parts."""
    if splits is None:
        return sizes if len(sizes) == num_ranks else None
    if splits:
        rows = data[0].shape[0] if data and data[0].dim() else 0
        return [sizes[0] * split // rows if rows else 0 for split in splits]
    return [sum(sizes) // num_ranks] * num_ranks
