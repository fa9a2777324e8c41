"""The compiled library: loaded once, if it was built from the C files that are here."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from distprof.compiled.build import LIBRARY, source_id

POINTER, INT32, INT64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "compiled_how": (ctypes.c_char_p, []),
    "interner_new": (POINTER, []),
    "interner_free": (None, [POINTER]),
    "interner_count": (INT64, [POINTER]),
    "interner_arena": (POINTER, [POINTER]),
    "interner_ends": (ctypes.POINTER(INT64), [POINTER]),
    "scan_events": (INT32, [POINTER, INT64, POINTER, POINTER]),
    "find_event": (INT64, [POINTER, INT64, INT64]),
    "link_rows": (INT32, [POINTER] * 4),
    "rewrite_events": (INT64, [*[POINTER] * 9, INT64, POINTER]),
    "lanes_new": (POINTER, [INT64, INT32]),
    "lanes_free": (None, [POINTER]),
    "lanes_add": (INT32, [POINTER, INT64, *[POINTER] * 6]),
    "lanes_num_late": (INT64, [POINTER]),
    "lanes_late": (POINTER, [POINTER]),
    "signal_start": (None, []),
    "signal_watch": (None, [INT32]),
    "signal_is_fatal": (INT32, [INT32]),
    "signal_wait": (INT32, [ctypes.c_double]),
    "signal_stop": (None, []),
    "signal_end": (None, [INT32]),
    "start_apart": (INT32, [POINTER, POINTER, INT32, INT32]),
}
"""Function -> type of its result, types of its arguments."""


@cache
def library() -> Any:
    """The library; None where there is none, or none that belongs to the C files here."""
    return _loaded()[0]


def is_built() -> bool:
    """True where the library was built and belongs to the C files."""
    return library() is not None


def how_built() -> str:
    """How the library was compiled, `by cc` or `manylinux_2_17_x86_64 wheel`; why there is none, where that is so."""
    return _loaded()[1]


@cache
def _loaded() -> tuple[Any, str]:
    if not LIBRARY.exists():
        return None, "it was not compiled when distprof was installed"
    try:
        loaded = ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        return None, f"it cannot be loaded: {error}"
    if loaded.source_id() & 0xFFFFFFFF != source_id():
        return None, "its C files have changed since it was compiled"
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded, loaded.compiled_how().decode()


def address(array: Any) -> int:
    """Where the values of a numpy array are; they must lie one after the other."""
    assert array.flags.c_contiguous
    return int(array.ctypes.data)
