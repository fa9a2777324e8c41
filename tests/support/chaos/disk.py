"""File systems that fill up, become read-only or fail, for a job that writes into `disk/`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).with_name("failing_files.c")


@cache
def can_mount() -> bool:
    """Whether this process may mount file systems."""
    return not os.getuid() and not subprocess.run(["unshare", "--mount", "true"], capture_output=True,
                                                  check=False).returncode


@contextmanager
def small_disk(place: Path, size_kib: int) -> Iterator[Path]:
    """A file system of that size in memory."""
    place.mkdir(parents=True, exist_ok=True)
    _run("mount", "-t", "tmpfs", "-o", f"size={size_kib}k", "chaos", place)
    try:
        yield place
    finally:
        _run("umount", "--lazy", place)


def make_read_only(place: Path, *, read_only: bool = True) -> bool:
    """Changes a mounted file system; False where a file is being written just now."""
    done = subprocess.run(["mount", "-o", f"remount,{'ro' if read_only else 'rw'}", place], capture_output=True,
                          check=False)
    return done.returncode == 0


def failing_files(folder: Path) -> Path:
    """The library that makes files fail, compiled; how it is told to is in its source."""
    library = folder / "failing_files.so"
    _run("cc", "-O1", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl")
    return library


def _run(*command: object) -> None:
    subprocess.run([os.fspath(word) if isinstance(word, Path) else str(word) for word in command], check=True,
                   capture_output=True)
