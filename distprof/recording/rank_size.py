"""How many bytes the folder of a rank may take, and the watch in it: `--max-rank-size 2GB`, `--watch-bytes 8MB`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from distprof.sizes import num_bytes

VARIABLE = "DISTPROF_MAX_RANK_SIZE"
MOST_BYTES = 2 * 10**9
WATCH_VARIABLE = "DISTPROF_WATCH_BYTES"
MOST_WATCH_BYTES = 8 * 10**6
"""An hour of short steps takes less than 1 MB."""


def requested(environ: Mapping[str, str]) -> int:
    """What DISTPROF_MAX_RANK_SIZE says, else `MOST_BYTES`.

    Raises:
        UsageError: It says no size.
    """
    text = environ.get(VARIABLE, "")
    return num_bytes(text, VARIABLE) if text else MOST_BYTES


def watch_bytes(environ: Mapping[str, str]) -> int:
    """What DISTPROF_WATCH_BYTES says, else `MOST_WATCH_BYTES`.

    Raises:
        UsageError: It says no size.
    """
    text = environ.get(WATCH_VARIABLE, "")
    return num_bytes(text, WATCH_VARIABLE) if text else MOST_WATCH_BYTES


def bytes_in(folder: Path) -> int:
    """What the files of a folder take."""
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
