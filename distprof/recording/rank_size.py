"""How many bytes the folder of a rank may take: `--max-rank-size 2GB`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from distprof.sizes import num_bytes

VARIABLE = "DISTPROF_MAX_RANK_SIZE"
MOST_BYTES = 2 * 10**9


def requested(environ: Mapping[str, str]) -> int:
    """What DISTPROF_MAX_RANK_SIZE says, else `MOST_BYTES`.

    Raises:
        UsageError: It says no size.
    """
    text = environ.get(VARIABLE, "")
    return num_bytes(text, VARIABLE) if text else MOST_BYTES


def bytes_in(folder: Path) -> int:
    """What the files of a folder take."""
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
