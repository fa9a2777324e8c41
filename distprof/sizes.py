"""Sizes as users write them, and the limits for the folder of a rank and for its watch log.

Examples: `--max-rank-size 2GB`, `--watch-bytes 8MB`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from distprof.errors import UsageError

UNITS: Mapping[str, int] = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
                            "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)")


def num_bytes(text: str, flag: str) -> int:
    """Parses a size such as `1GB` or `500 MiB`; returns bytes.

    Raises:
        UsageError: It is not a size, or less than a byte.
    """
    found = _SIZE.fullmatch(text.strip().lower())
    number = float(found[1]) * UNITS[found[2]] if found is not None and found[2] in UNITS else 0.0
    if number < 1:
        raise UsageError(f"{flag} must be a size, not {text!r}", hint="like 1GB, 500MB or 2GiB")
    return int(number)


RANK_VARIABLE = "DISTPROF_MAX_RANK_SIZE"
MOST_RANK_BYTES = 2 * 10**9
WATCH_VARIABLE = "DISTPROF_WATCH_BYTES"
MOST_WATCH_BYTES = 8 * 10**6
"""Default limit of the watch log of a rank in bytes; an hour of short steps takes less than 1 MB."""


def rank_bytes(environ: Mapping[str, str]) -> int:
    """Returns DISTPROF_MAX_RANK_SIZE in bytes, else `MOST_RANK_BYTES`.

    Raises:
        UsageError: Its value is not a size.
    """
    text = environ.get(RANK_VARIABLE, "")
    return num_bytes(text, RANK_VARIABLE) if text else MOST_RANK_BYTES


def watch_bytes(environ: Mapping[str, str]) -> int:
    """Returns DISTPROF_WATCH_BYTES in bytes, else `MOST_WATCH_BYTES`.

    Raises:
        UsageError: Its value is not a size.
    """
    text = environ.get(WATCH_VARIABLE, "")
    return num_bytes(text, WATCH_VARIABLE) if text else MOST_WATCH_BYTES


def bytes_in(folder: Path) -> int:
    """Returns the total size of the files directly in a folder."""
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
