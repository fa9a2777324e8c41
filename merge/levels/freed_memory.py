"""What was freed goes back to the system: arrays over thousands of ranks are large, and each is needed for a while."""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Options of glibc's `mallopt`."""
_LARGE_BYTES = 1 << 20
"""Chunks from this size on are given back at once, and the end of the heap where as much is free."""


def give_back() -> None:
    """Undoes for what follows that a command keeps freed memory; does nothing where the C library is not glibc."""
    library = ctypes.CDLL(None)
    mallopt, trim = getattr(library, "mallopt", None), getattr(library, "malloc_trim", None)
    if mallopt is not None and trim is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _LARGE_BYTES)
        trim(0)
