"""Functions that count one operator, as scripts for fvcore define them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distprof.peers.jit_values import JitValue

Handle = Callable[[list[Any], list[Any]], Any]
"""Values that went into an operator and came out -> a number, or a Counter of numbers by name."""


def get_shape(value: JitValue) -> list[int] | None:
    """Shape of a value that a handle gets; None where it is no tensor."""
    return value.type().sizes() if value.isCompleteTensor() else None
