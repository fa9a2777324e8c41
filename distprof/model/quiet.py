"""Hides our work in the script's thread: torch does not warn about it, no modes or tensor subclasses of the script are
called, and hook numbers that the script may save do not change.
"""

from __future__ import annotations

import ctypes
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

ERRORS = 2
"""The level of torch's C++ log at which warnings are not logged."""


class QuietAbout:
    """Keeps one warning from being shown, or raised, between `start` and `stop`."""

    def __init__(self, words: str) -> None:
        """Selects the UserWarning whose text begins with a match of this regular expression."""
        # in the form of the list of filters; functions of `warnings` that change it would show old warnings again
        self.filter = ("ignore", re.compile(words), UserWarning, None, 0)

    def start(self) -> None:
        filters: Any = warnings.filters
        filters.insert(0, self.filter)

    def stop(self) -> None:
        """Leaves the warning to the script's filters again."""
        filters: Any = warnings.filters
        filters[:] = [entry for entry in filters if entry is not self.filter]


@contextmanager
def quiet_log() -> Iterator[None]:
    """Keeps torch's C++ code from logging warnings about our work on stderr."""
    level = _log_level()
    before = None if level is None else level.value
    try:
        if level is not None and before is not None:
            level.value = max(before, ERRORS)
        yield
    finally:
        if level is not None and before is not None:
            level.value = before


@cache
def _log_level() -> ctypes.c_int | None:
    """Returns the variable that TORCH_CPP_LOG_LEVEL sets when torch is loaded; None if it cannot be found."""
    try:
        return ctypes.c_int.in_dll(ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so")),
                                   "FLAGS_caffe2_log_level")
    except (OSError, ValueError):
        return None


is_traced = torch._C._get_tracing_state
"""Returns something other than None while `torch.jit.trace` runs the model."""
FIRST = -(1 << 40)
_numbers = [FIRST]
"""The next number of one of our hooks. torch counts from 0, and saves the numbers of hooks with a model."""


class unnoticed:  # contextlib takes five times as long
    """A context in which no `__torch_function__` of the script is called, and new hooks get our own numbers."""

    __slots__ = ("_disabled", "_number")

    def __enter__(self) -> None:
        self._disabled: Any = torch._C.DisableTorchFunction()
        self._disabled.__enter__()
        self._number, RemovableHandle.next_id = RemovableHandle.next_id, _numbers[0]

    def __exit__(self, *_: object) -> None:
        _numbers[0], RemovableHandle.next_id = RemovableHandle.next_id, self._number
        self._disabled.__exit__(None, None, None)
