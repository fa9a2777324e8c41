"""Compiles merge/scan/scan.c where there is a C compiler; without one distprof works, slower."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ScanBuild(BuildHookInterface):
    """Runs before a wheel is packed or an editable install is made."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compiles; a wheel that holds machine code says for which machine it is."""
        if self.target_name != "wheel":
            return
        library = compile_scan(Path(self.root) / "distprof" / "merge" / "scan")
        if library is not None and version != "editable":
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{_platform()}"


def compile_scan(folder: Path) -> Path | None:
    """Gives the library, or None with a line on stderr where it cannot be built."""
    source, library = folder / "scan.c", folder / "_scan.so"
    temporary = library.with_suffix(f".{os.getpid()}.tmp")
    compiler = shlex.split(os.environ.get("CC", "cc"))
    command = [*compiler, "-O3", "-std=c11", "-shared", "-fPIC", f"-DSOURCE_ID={zlib.crc32(source.read_bytes())}u",
               "-o", str(temporary), str(source)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", None) or error
        library.unlink(missing_ok=True)  # of an earlier build: a wheel for every machine must not hold it
        sys.stderr.write(f"distprof: no fast merge engine ({shlex.join(command[:1])}: {said}); merging works, slower\n")
        return None
    temporary.replace(library)
    return library


def _platform() -> str:
    from packaging.tags import sys_tags

    return next(tag.platform for tag in sys_tags() if tag.platform.startswith("linux") or "linux" not in tag.platform)
