"""What the cost of an operator call follows from: layers repeat the same calls."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import torch

from distprof.model.tensors import PLAIN_VALUES

KWARGS, OUTPUT, TENSOR, MANY = object(), object(), object(), object()
"""What comes next in a key; no argument is one of these."""


def call_key(func: Any, args: Sequence[Any], kwargs: dict[str, Any], output: Any) -> Hashable | None:
    """What the cost of a call follows from; None where a call has anything but strided tensors and plain values.

    One with a size that is not known yet cannot be hashed.

    A tensor that is passed twice is read once, and one that comes back was changed in place: both are told apart from
    calls with as many tensors as they seem to have. The operator goes in as its `id`: who keeps a key keeps it alive.
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
    except TypeError:  # a tensor of another kind
        return None
    distinct = len({*seen})
    key.append(tuple(map(seen.index, seen)) if distinct < len(seen) else distinct)
    return tuple(key)


def _add_specs(values: Iterable[Any], key: list[Hashable], seen: list[int]) -> None:
    # one flat list: every operator call comes here, and each function more that Python enters can be measured
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
