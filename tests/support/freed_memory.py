"""Makes a process crash if it uses a large block of memory after it was freed, instead of continuing by luck."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_suffix(".c")


def environ_that_ends_it(folder: Path) -> dict[str, str]:
    """Returns the environment variables for such a process."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None or platform.libc_ver()[0] != "glibc":
        pytest.skip("needs a C compiler and glibc")
    library = folder / "freed_memory.so"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, SOURCE], check=True)
    return {"LD_PRELOAD": str(library)}
