"""Shapes of the inputs of a call, as the profiler writes them."""

from __future__ import annotations

from functools import lru_cache

import msgspec

MOST = 1 << 16


def strict(text: str) -> str | None:
    """The text as JSON is usually written; None for what is none."""
    try:
        found = msgspec.json.encode(msgspec.json.decode(text)).decode().replace(",", ", ")
    except msgspec.DecodeError:
        return None
    return text if found == text else found  # most are: in memory once


@lru_cache(maxsize=MOST)
def tensors_of(text: str) -> str:
    """Shapes of tensors alone, lists taken apart: to the profiler a scalar looks like a tensor without dimensions."""
    try:
        return msgspec.json.encode(_flat(msgspec.json.decode(text, type=list[object]))).decode()
    except msgspec.DecodeError:
        return text


def _flat(dims: list[object]) -> list[object]:
    found = list[object]()
    for one in dims:
        if isinstance(one, list) and one:
            found += _flat(one) if isinstance(one[0], list) else [one]
    return found


def tensors_and_scalars(text: str) -> str:
    """As torch's tables show it: a list of tensors looks like a scalar."""
    try:
        dims = msgspec.json.decode(text, type=list[object])
    except msgspec.DecodeError:
        return "[]"
    return str([[] if isinstance(one, list) and one and isinstance(one[0], list) else one for one in dims])
