"""Compiles the merge engine with the C compiler of the machine, or with the one that CC names.

`hatch_build.py` runs it when distprof is installed, before anything that distprof needs is there: it takes the standard
library alone. After a change of the C files, or where an installed distprof has no compiled engine:
`python distprof/compiled/build.py`.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import zlib
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
LIBRARY = FOLDER / "_compiled.so"
FLAGS = ("-O3", "-std=c11", "-Wall", "-Wextra")


def source_id() -> int:
    """Checksum of the C files, which a library holds from its compilation on: one that is out of date is not used."""
    sources = sorted(path for path in FOLDER.iterdir() if path.suffix in (".c", ".h"))
    return zlib.crc32(b"".join(path.read_bytes() for path in sources))


def build(library: Path = LIBRARY, *, wheel: str | None = None) -> Path | None:
    """Compiles for this installation, or for a wheel.

    Args:
        library: Where it goes.
        wheel: The platform of the wheel that is to hold it, as its name has it.

    Returns:
        The library; None, with a line on stderr, where it cannot be compiled.
    """
    import subprocess  # takes a while, and most who are here want to know what there is

    temporary = library.with_suffix(f".{os.getpid()}{library.suffix}")
    compiler = shlex.split(os.environ.get("CC", "cc"))
    how = f"{wheel} wheel" if wheel else f"by {shlex.join(compiler)}"
    command = [*compiler, *FLAGS, "-shared", "-fPIC", f"-DSOURCE_ID={source_id()}u",
               f"-DCOMPILED_HOW={json.dumps(how)}", "-o", str(temporary), str(FOLDER / "engine.c")]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", None) or error
        temporary.unlink(missing_ok=True)
        sys.stderr.write(f"distprof: the merge engine was not compiled, merging will be slow "
                         f"({shlex.join(compiler)}: {reason})\n")
        return None
    temporary.replace(library)
    return library


if __name__ == "__main__":
    sys.exit(build() is None)
