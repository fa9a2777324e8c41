"""Sizes as users write them on the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping

from distprof.errors import UsageError

UNITS: Mapping[str, int] = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
                            "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)")


def num_bytes(text: str, flag: str) -> int:
    """`1GB`, `500 MiB` as bytes.

    Raises:
        UsageError: It is something else.
    """
    found = _SIZE.fullmatch(text.strip().lower())
    number = float(found[1]) * UNITS[found[2]] if found is not None and found[2] in UNITS else 0.0
    if number < 1:
        raise UsageError(f"{flag} must be a size, not {text!r}", hint="like 1GB, 500MB or 2GiB")
    return int(number)
