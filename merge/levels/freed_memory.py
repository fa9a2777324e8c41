"""What was freed goes back to the system: arrays over thousands of ranks are large, and each is needed for a while."""

from __future__ import annotations

import ctypes


def give_back() -> None:
    """Does nothing where the C library is not glibc. It sets no options: notebooks read runs as well."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
