"""Compiles the merge engine with the C compiler of the machine.

`hatch_build.py` runs it when distprof is installed, before anything that distprof needs is there: it takes the standard
library alone. After a change of the C files: `python merge/scan/compiled/build.py`.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import zlib
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
LIBRARY = FOLDER.parent / "_scan.so"
FLAGS = ("-O3", "-std=c11", "-Wall", "-Wextra")


def source_id() -> int:
    """Checksum of the C files, which a library holds from its compilation on: one that is out of date is not used."""
    sources = sorted(path for path in FOLDER.iterdir() if path.suffix in (".c", ".h"))
    return zlib.crc32(b"".join(path.read_bytes() for path in sources))


def build() -> Path | None:
    """Returns the library; None, with a line on stderr, where it cannot be compiled."""
    temporary = LIBRARY.with_suffix(f".{os.getpid()}.tmp")
    compiler = shlex.split(os.environ.get("CC", "cc"))
    command = [*compiler, *FLAGS, "-shared", "-fPIC", f"-DSOURCE_ID={source_id()}u", "-o", str(temporary),
               str(FOLDER / "engine.c")]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", None) or error
        LIBRARY.unlink(missing_ok=True)  # of an earlier build: a wheel for every machine must not hold it
        sys.stderr.write(f"distprof: the merge engine was not compiled, merging will be slow "
                         f"({shlex.join(compiler)}: {reason})\n")
        return None
    temporary.replace(LIBRARY)
    return LIBRARY


if __name__ == "__main__":
    sys.exit(build() is None)
