"""What the cost of an operator call follows from: layers repeat the same calls."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch

from distprof.model.tensors import PLAIN_VALUES

STRIDED = (torch.Tensor, torch.nn.Parameter)


def call_key(func: Any, args: Sequence[Any], kwargs: dict[str, Any], output: Any) -> Hashable | None:
    """What the cost of a call follows from; None where a call has anything but strided tensors and plain values.

    One with a size that is not known yet cannot be hashed.

    A tensor that is passed twice is read once, and one that comes back was changed in place: both are told apart from
    calls with as many tensors as they seem to have. The operator goes in as its `id`: who keeps a key keeps it alive.
    """
    seen: list[int] = []
    try:
        key = id(func), _spec(args, seen), _spec(tuple(kwargs.items()), seen) if kwargs else None, _spec(output, seen)
        distinct = len({*seen})
        repeats = tuple(map(seen.index, seen)) if distinct < len(seen) else distinct
    except TypeError:  # a tensor of another kind
        return None
    return key, repeats


def _spec(value: Any, seen: list[int]) -> Hashable:
    kind = type(value)
    if kind in STRIDED:
        if value.layout is not torch.strided or value.is_nested:
            raise TypeError
        seen.append(id(value))
        return value.shape, value.stride(), value.dtype
    if kind in PLAIN_VALUES:
        return value  # type: ignore[no-any-return]
    if kind is tuple or kind is list:
        return tuple([_spec(part, seen) for part in value])
    raise TypeError
