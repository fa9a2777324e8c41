"""Memory settings for commands that read large traces; they own their process, a library must not set these."""

from __future__ import annotations

import gc
import os

from distprof.system import c_function

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Options of glibc's `mallopt`."""
_OBJECTS = 200_000
"""New objects between two runs of the cyclic garbage collector; a merge makes few cycles."""


def reuse_memory() -> None:
    """Makes the allocator keep freed memory for the next chunk instead of asking the kernel for new pages.

    Call it before numpy and Arrow are imported. OpenBLAS gets one thread: nothing here multiplies matrices.
    """
    gc.set_threshold(_OBJECTS)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    mallopt = c_function("mallopt")
    if mallopt is not None:  # only glibc has one
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_TRIM_THRESHOLD, 256 << 20)
