"""How a process that merges uses memory; for commands, which have the process to themselves."""

from __future__ import annotations

import ctypes
import gc
import os

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Options of glibc's `mallopt`."""
_OBJECTS = 200_000
"""New objects after which Python looks for those that only hold each other; a merge makes few such."""


def reuse_memory() -> None:
    """Keeps what was freed for the next chunk, instead of taking new pages from the kernel each time.

    Has to be called before numpy and Arrow are loaded. Says also that nothing here multiplies matrices.
    """
    gc.set_threshold(_OBJECTS)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # other libraries have no such thing
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_TRIM_THRESHOLD, 256 << 20)
