"""What we do in the thread of a script is not noticed by its tensors and modes, and moves no number it may keep."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

is_traced = torch._C._get_tracing_state
"""Not None while `torch.jit.trace` runs the model."""
FIRST = -(1 << 40)
_numbers = [FIRST]
"""The next number of a hook of ours; torch counts from 0, and saves the numbers of a model's hooks with it."""


class unnoticed:  # contextlib would take five times as long
    """While it is entered, no `__torch_function__` of the script is called, and new hooks have numbers of ours."""

    __slots__ = ("_disabled", "_number")

    def __enter__(self) -> None:
        self._disabled: Any = torch._C.DisableTorchFunction()
        self._disabled.__enter__()
        self._number, RemovableHandle.next_id = RemovableHandle.next_id, _numbers[0]

    def __exit__(self, *_: object) -> None:
        _numbers[0], RemovableHandle.next_id = RemovableHandle.next_id, self._number
        self._disabled.__exit__(None, None, None)
