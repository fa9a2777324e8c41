"""Calls below Python of a process that hangs, where py-spy is installed and may look."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import msgspec

PATIENCE_S = 10.0
SHOWN = 6


def native_calls(pid: int) -> list[str]:
    """The innermost calls of the main thread, outermost first; none where py-spy is not there or may not look."""
    program = shutil.which("py-spy")
    if program is None:
        return []
    try:
        done = subprocess.run([program, "dump", "--native", "--json", "--pid", str(pid)], timeout=PATIENCE_S,
                              check=True, stdin=subprocess.DEVNULL, capture_output=True)
        threads: list[dict[str, Any]] = msgspec.json.decode(done.stdout)
        main = next((one for one in threads if one.get("thread_name") == "MainThread"), threads[0])
        return [f"{frame['name']} ({frame['short_filename'] or frame['filename']})"
                for frame in main["frames"][:SHOWN]][::-1]
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError, LookupError, TypeError):
        return []
