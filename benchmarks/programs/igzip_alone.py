"""Compresses files and discards the result, as a lower limit for gzip output: python igzip_alone.py FILE...

Reads and compresses with igzip at level 1 on all cores.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from isal import igzip_lib

CHUNK = 1 << 20


def compress(path: str) -> None:
    """Compresses one file; igzip releases the GIL."""
    chunk = bytearray(CHUNK)
    with Path(path).open("rb", buffering=0) as file:
        while size := file.readinto(chunk):
            igzip_lib.compress(memoryview(chunk)[:size], level=1, flag=igzip_lib.COMP_GZIP)


if __name__ == "__main__":
    with ThreadPoolExecutor(os.cpu_count()) as executor:
        list(executor.map(compress, sys.argv[1:]))
