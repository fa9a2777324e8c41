"""Which storages a recorded call reads and writes, from its tensors and its schema."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from distprof.merge.execution.nodes import Node, Values

TENSOR_FIELDS = 6
"""Length of a recorded tensor: tensor id, storage id, offset, number of elements, bytes of an element, device."""
_OPENING, _CLOSING = "([{", ")]}"
_VALUES = msgspec.json.Decoder(list)


class Tensor(NamedTuple):
    """A tensor as the observer writes it."""

    storage: int
    """Id of its storage; shared by views, and by tensors that occupy the same memory one after another."""
    num_bytes: int
    device: str


class TensorUse(NamedTuple):
    """How a call uses a storage."""

    tensor: Tensor
    reads: bool
    writes: bool


def uses_of(node: Node) -> list[TensorUse]:
    """Returns the storages that a call uses, each once.

    An input is read, and also written if the schema marks it (`Tensor(a!)`). An output is new and written if its
    storage belongs to no input; otherwise it is a view or the input itself.
    """
    found: dict[int, TensorUse] = {}
    written = written_arguments(node.op_schema)
    for place, value in enumerate(values_of(node.inputs)):
        writes = place < len(written) and written[place]
        for tensor in tensors_in(value):
            known = found.get(tensor.storage)
            found[tensor.storage] = TensorUse(tensor, True, writes or (known is not None and known.writes))
    for tensor in tensors_in(values_of(node.outputs)):
        if tensor.storage not in found:
            found[tensor.storage] = TensorUse(tensor, False, True)
    return list(found.values())


def tensors_in(value: object) -> Iterator[Tensor]:
    """Yields the tensors in nested lists of values."""
    if type(value) is not list:
        return
    if len(value) == TENSOR_FIELDS and type(value[-1]) is str and all(type(one) is int for one in value[:-1]):
        if value[1]:  # otherwise the tensor has no storage
            yield Tensor(value[1], value[3] * value[4], value[5])
        return
    for part in value:
        yield from tensors_in(part)


@lru_cache(maxsize=1 << 14)
def written_arguments(schema: str) -> Sequence[bool]:
    """Returns for each argument of an operator's schema whether the operator writes to it."""
    begin = schema.find("(")
    if begin < 0:
        return ()
    depth, parts, last = 0, list[str](), begin + 1
    for place in range(begin, len(schema)):
        letter = schema[place]
        depth += (letter in _OPENING) - (letter in _CLOSING)
        if (letter == "," and depth == 1) or not depth:
            parts.append(schema[last:place].strip())
            last = place + 1
        if not depth:
            break
    return tuple(re.search(r"\(\w*!", part) is not None for part in parts if part and part != "*")


def values_of(recorded: Values) -> list[Any]:
    """Returns the recorded values of a call; an empty list if they cannot be read."""
    try:
        found: list[Any] = _VALUES.decode(recorded.values)
    except msgspec.MsgspecError:
        return []
    return found
