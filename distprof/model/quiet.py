"""Warnings of torch that are about us, not about the script."""

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

ERRORS = 2
"""The level of torch's C++ log at which it warns of nothing."""


class QuietAbout:
    """Keeps one warning from being shown, or raised, between `start` and `stop`."""

    def __init__(self, words: str) -> None:
        """For the UserWarning whose text begins with what this regular expression matches."""
        # as the list of filters has it; the functions that change the list would let old warnings show again
        self.filter = ("ignore", re.compile(words), UserWarning, None, 0)

    def start(self) -> None:
        filters: Any = warnings.filters
        filters.insert(0, self.filter)

    def stop(self) -> None:
        """Leaves it to the filters of the script again."""
        filters: Any = warnings.filters
        filters[:] = [entry for entry in filters if entry is not self.filter]


@contextmanager
def quiet_log() -> Iterator[None]:
    """Keeps torch's C++ code from logging warnings for a moment: with them it tells what we do, on stderr."""
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
    """The variable that TORCH_CPP_LOG_LEVEL sets when torch is loaded; None where it is not to be found."""
    try:
        return ctypes.c_int.in_dll(ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so")),
                                   "FLAGS_caffe2_log_level")
    except (OSError, ValueError):
        return None
