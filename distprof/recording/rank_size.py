"""How many bytes the folder of a rank may take: `--max-rank-size 2GB`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from distprof.errors import UsageError

VARIABLE = "DISTPROF_MAX_RANK_SIZE"
MOST_BYTES = 2 * 10**9
UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 1 << 10, "mib": 1 << 20,
         "gib": 1 << 30, "tib": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)")


def parse_size(text: str, *, where: str = "--max-rank-size") -> int:
    """`2GB`, `500 MiB` as bytes.

    Raises:
        UsageError: It is something else.
    """
    found = _SIZE.fullmatch(text.strip().lower())
    number = float(found[1]) * UNITS[found[2]] if found is not None and found[2] in UNITS else 0.0
    if number < 1:
        raise UsageError(f"expected a size for {where}, found {text!r}", hint="like 2GB, 500MB or 2GiB")
    return int(number)


def requested(environ: Mapping[str, str]) -> int:
    """What DISTPROF_MAX_RANK_SIZE says, else `MOST_BYTES`.

    Raises:
        UsageError: It says no size.
    """
    text = environ.get(VARIABLE, "")
    return parse_size(text, where=VARIABLE) if text else MOST_BYTES


def bytes_in(folder: Path) -> int:
    """What the files of a folder take."""
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
