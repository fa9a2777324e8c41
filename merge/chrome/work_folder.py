"""The folder beside the files of a merge through which workers hand over surveys, and files that are being written.

Two workers may do the same work at once, if one was presumed dead. So each attempt has its own file, which gets its
final name when it is complete; once the folder is gone, nobody can add to the merge any more.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from distprof.merge.workers.carried import carried_in, carry

WORK = ".work"
LOOK_S = 1.0
"""Seconds between two checks whether the folder still exists."""
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
"""Removes the folder unless its input ends with "done". The input ends when the merge ends, for whatever reason."""


def make_work_folder(folder: Path) -> Path:
    """Returns the folder, which is made if it does not exist."""
    work = folder / WORK
    work.mkdir(exist_ok=True)
    return work


def remove_work_folder(folder: Path) -> None:
    """Removes the folder with its contents, if it exists. Writers that still use it no longer find it."""
    gone = folder / f"{WORK}.{os.urandom(4).hex()}"
    with suppress(FileNotFoundError):
        (folder / WORK).rename(gone)
        shutil.rmtree(gone)


class StillWanted:
    """Ends long work for a merge that is gone: its process may have been killed on another host."""

    def __init__(self, work: Path | None) -> None:
        self._work, self._next = work, time.monotonic() + LOOK_S

    def look(self) -> None:
        """Checks that the merge still exists; must be called often.

        Raises:
            OSError: The folder of the merge is gone.
        """
        if self._work is not None and time.monotonic() > self._next:
            self._next = time.monotonic() + LOOK_S
            if not self._work.is_dir():
                raise FileNotFoundError(errno.ENOENT, "the merge was abandoned", str(self._work))


class Attempt:
    """A file that is being written, and gets its name when it is complete."""

    def __init__(self, path: Path, work: Path) -> None:
        """Opens it.

        Args:
            path: Its final path.
            work: The folder where it is until then, on the same file system.
        """
        self._path, self._temporary = path, (carried_in() or work) / f"{path.name}.{os.urandom(4).hex()}"
        self._is_kept = False
        self.file: IO[bytes] = self._temporary.open("w+b")

    def keep(self, *, spare: bool = False) -> None:
        """Closes the file and gives it its name, replacing that of another attempt.

        Args:
            spare: Whether the client seldom needs it.
        """
        self.file.close()
        self._is_kept = True
        if not carry(self._temporary, self._path, spare=spare):
            self._temporary.replace(self._path)

    def close(self) -> None:
        """Closes it; if it was not kept, it is removed."""
        self.file.close()
        if not self._is_kept:
            with suppress(OSError):
                self._temporary.unlink()


@contextmanager
def removed_if_killed(folder: Path) -> Iterator[None]:
    """Starts a process that removes the folder if this one is killed, upon which workers stop within seconds."""
    watch = subprocess.Popen([sys.executable, "-I", "-S", "-c", _WATCH, str(folder)], stdin=subprocess.PIPE, text=True,
                             start_new_session=True)
    try:
        yield
    finally:
        watch.communicate("done")
