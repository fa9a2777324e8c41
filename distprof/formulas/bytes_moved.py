"""Bytes that an operator call reads and writes if it moves every tensor once.

Caches, recomputation inside a kernel and scratch memory are not included. A broadcast dimension (stride 0) counts as
one element. Views move nothing. An in-place operator reads what it writes, unless it only overwrites.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import NamedTuple

import torch

from distprof.formulas.dispatched_call import name_of
from distprof.model.tensors import parts_of, tensors
from distprof.shape_formulas.operator_call import OperatorCall, OperatorKind

OVERWRITING = frozenset({
    "fill_", "zero_", "copy_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_", "geometric_", "cauchy_",
    "log_normal_", "_foreach_copy_", "_foreach_zero_",
})
"""In-place operators that overwrite without reading."""


class BytesMoved(NamedTuple):
    """Bytes read and written by one call."""

    read: int
    write: int


class _Access(NamedTuple):
    """Names of the arguments that an operator reads and writes."""

    read: tuple[str, ...]
    write: tuple[str, ...]
    new: bool
    """True if the output, or part of it, is new memory."""


@cache
def _access(func: object) -> _Access | None:
    if not isinstance(func, torch._ops.OpOverload):
        return None
    schema, bare = func._schema, func._schema.name.partition("::")[2]
    written = [argument for argument in schema.arguments if argument.alias_info and argument.alias_info.is_write]
    over = {argument.name for argument in written if argument.kwarg_only or argument.is_out or bare in OVERWRITING}
    return _Access(
        read=tuple(argument.name for argument in schema.arguments if argument.name not in over),
        write=tuple(argument.name for argument in written),
        new=any(returned.alias_info is None for returned in schema.returns),
    )


def bytes_moved(func: object, kind: OperatorKind, call: OperatorCall) -> BytesMoved:
    """Returns the bytes that one call reads and writes.

    Args:
        func: The operator.
        kind: Its kind; views move nothing.
        call: Its arguments and output.
    """
    if kind == "view":
        return BytesMoved(0, 0)
    special = BY_ROWS.get(name_of(func).partition("::")[2])
    if special is not None:
        return special(call)
    return _by_schema(func, call)


def _by_schema(func: object, call: OperatorCall) -> BytesMoved:
    access = _access(func)
    if access is None:
        return BytesMoved(_size(tensors(list(call.arguments.values()))), _size(tensors(call.output)))
    read = _size(tensor for name in access.read for tensor in _held(call.arguments.get(name)))
    written = [tensor for name in access.write for tensor in _held(call.arguments.get(name))]
    known = {id(tensor) for tensor in written}
    fresh = [tensor for tensor in _held(call.output) if id(tensor) not in known] if access.new else []
    return BytesMoved(read, _size(written + fresh))


def _held(argument: object) -> list[torch.Tensor]:
    # runs for each argument of each call; most are a tensor or contain none
    if isinstance(argument, torch.Tensor):
        return [argument]
    return tensors(argument) if isinstance(argument, (list, tuple)) else []


def _size(involved: Iterable[torch.Tensor]) -> int:
    return sum(size_bytes(tensor) for tensor in {id(tensor): tensor for tensor in involved}.values())


def size_bytes(tensor: torch.Tensor) -> int:
    """Returns the bytes of memory of a tensor: broadcast dimensions count once, and for a sparse tensor only what is
    stored."""
    if tensor.layout is not torch.strided:
        return _size(parts_of(tensor) or ())
    if tensor.is_nested:
        return int(tensor.numel()) * tensor.element_size()
    elements = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        elements *= int(size) if stride or not size else 1
    return elements * tensor.element_size()


def _others(call: OperatorCall, *names: str) -> int:
    """Returns the bytes of all tensor arguments except these."""
    return _size(tensors([value for name, value in call.arguments.items() if name not in names]))


def _gathering(table: str) -> Callable[[OperatorCall], BytesMoved]:
    """Returns the formula for operators that read as many elements of a table as the output has, and all other
    arguments."""

    def moved(call: OperatorCall) -> BytesMoved:
        out = _size(tensors(call.output))
        return BytesMoved(out + _others(call, table, "out"), out)

    return moved


def _scattering(*given: str) -> Callable[[OperatorCall], BytesMoved]:
    """Returns the formula for in-place operators that write as many elements as they get, reading them first if they
    accumulate."""

    def moved(call: OperatorCall) -> BytesMoved:
        source = next((call[name] for name in given if isinstance(call.arguments.get(name), torch.Tensor)), None)
        table = call["self"]
        touched = table.element_size() * min(table.numel(), max(
            (int(tensor.numel()) for tensor in tensors([source, call.arguments.get("index")])), default=0))
        return BytesMoved(_others(call, "self") + (touched if call.arguments.get("accumulate", True) else 0), touched)

    return moved


def _bag(call: OperatorCall) -> BytesMoved:
    """Returns the bytes of an embedding bag: each index reads a row of the table."""
    weight = call["weight"]
    rows = int(call["indices"].numel()) * int(weight.shape[1]) * weight.element_size()
    return BytesMoved(rows + _others(call, "weight"), _size(tensors(call.output)))


def _renorm(call: OperatorCall) -> BytesMoved:
    """Returns the bytes of `embedding_renorm_`: indexed rows of the table are read, and at most as many written."""
    table = call["self"]
    rows = min(int(call["indices"].numel()), int(table.shape[0])) * int(table.shape[1]) * table.element_size()
    return BytesMoved(rows + _size([call["indices"]]), rows)


BY_ROWS: dict[str, Callable[[OperatorCall], BytesMoved]] = {
    "embedding": _gathering("weight"),
    "index_select": _gathering("self"),
    "gather": _gathering("self"),
    "take": _gathering("self"),
    "index": _gathering("self"),
    "_unsafe_index": _gathering("self"),
    "_embedding_bag": _bag,
    "_embedding_bag_forward_only": _bag,
    "embedding_renorm_": _renorm,
    "index_put_": _scattering("values"),
    "_index_put_impl_": _scattering("values"),
    "index_add_": _scattering("source"),
    "scatter_add_": _scattering("src"),
    "scatter_reduce_": _scattering("src"),
}
"""Operators that read or write only part of a tensor."""
