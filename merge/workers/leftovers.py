"""Removes the temporary folder of a merge whose process is killed while workers on other hosts still write to it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_WATCH = """
import os, shutil, sys
if sys.stdin.read() != "done":
    gone = sys.argv[1] + ".gone"
    try:
        os.rename(sys.argv[1], gone)
    except OSError:
        pass
    shutil.rmtree(gone, ignore_errors=True)
"""
"""Reads to the end of its input, which comes when the merge has ended, however that was."""


@contextmanager
def removed_if_killed(folder: Path) -> Iterator[None]:
    """Has a process of its own watch this one. Workers stop within seconds where the folder is gone."""
    watch = subprocess.Popen([sys.executable, "-I", "-S", "-c", _WATCH, str(folder)], stdin=subprocess.PIPE, text=True,
                             start_new_session=True)
    try:
        yield
    finally:
        watch.communicate("done")
