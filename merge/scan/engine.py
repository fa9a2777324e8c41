"""The engine that reads and rewrites Chrome events: in C where it was compiled, else in Python, many times slower.

Both have the same classes and give the same results. DISTPROF_REFERENCE_ENGINE=1 takes the one in Python.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from distprof.merge.scan import compiled_engine
from distprof.merge.scan.rows import (
    ARGS,
    BAD_TIME,
    BIND_ID,
    DUR,
    ENCLOSING,
    FLOW_IN,
    FLOW_OUT,
    GLOBAL,
    ID,
    LATEST_NS,
    MOST_BYTES,
    NO_ARROW,
    NON_ASCII,
    NONE,
    PID,
    REPAIR,
    SCOPE,
    TID,
    TS,
    Status,
    Text,
)

__all__ = ["ARGS", "BAD_TIME", "BIND_ID", "DUR", "ENCLOSING", "FLOW_IN", "FLOW_OUT", "GLOBAL", "ID", "LATEST_NS",
           "MOST_BYTES", "NONE", "NON_ASCII", "NO_ARROW", "PID", "REPAIR", "SCOPE", "TID", "TS", "Interner", "Scanner",
           "Status", "Text", "find_innermost", "find_overlaps", "is_compiled"]

_IS_COMPILED = "DISTPROF_REFERENCE_ENGINE" not in os.environ and compiled_engine.is_built()

if TYPE_CHECKING or _IS_COMPILED:
    from distprof.merge.scan.compiled_engine import (
        Interner,
        Scanner,
        find_innermost,
        find_overlaps,
    )
else:
    from distprof.merge.scan.reference import (
        Interner,
        Scanner,
        find_innermost,
        find_overlaps,
    )


def is_compiled() -> bool:
    """True where the fast engine is in use."""
    return _IS_COMPILED
