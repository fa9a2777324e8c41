"""Compresses files and drops the result: the limit of gzip. python igzip_alone.py FILE...

Reads and compresses with igzip at level 1 on every core, and throws the result away.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from isal import igzip_lib

CHUNK = 1 << 20


def compress(path: str) -> None:
    """One file; the lock of the interpreter is free meanwhile."""
    chunk = bytearray(CHUNK)
    with Path(path).open("rb", buffering=0) as file:
        while size := file.readinto(chunk):
            igzip_lib.compress(memoryview(chunk)[:size], level=1, flag=igzip_lib.COMP_GZIP)


if __name__ == "__main__":
    with ThreadPoolExecutor(os.cpu_count()) as executor:
        list(executor.map(compress, sys.argv[1:]))
