"""The folder beside the files of a merge for what workers hand over: surveys, and files that are being written.

Two workers may do the same work at once, where one was taken for dead. So each attempt has a file of its own, which
gets the name it is meant for when it is whole; once the folder is gone, nobody can add to the merge any more.
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
"""Between two looks whether the folder is still there."""
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


def make_work_folder(folder: Path) -> Path:
    """The folder, which may be there."""
    work = folder / WORK
    work.mkdir(exist_ok=True)
    return work


def remove_work_folder(folder: Path) -> None:
    """Removes it with all that is in it, if it is there. What still writes to it finds it under no name."""
    gone = folder / f"{WORK}.{os.urandom(4).hex()}"
    with suppress(FileNotFoundError):
        (folder / WORK).rename(gone)
        shutil.rmtree(gone)


class StillWanted:
    """Ends long work for a merge that is gone: its process may have been killed on another host."""

    def __init__(self, work: Path | None) -> None:
        self._work, self._next = work, time.monotonic() + LOOK_S

    def look(self) -> None:
        """Call it often.

        Raises:
            OSError: The folder of the merge is gone.
        """
        if self._work is not None and time.monotonic() > self._next:
            self._next = time.monotonic() + LOOK_S
            if not self._work.is_dir():
                raise FileNotFoundError(errno.ENOENT, "the merge was abandoned", str(self._work))


class Attempt:
    """A file that is being written, and gets its name when it is whole."""

    def __init__(self, path: Path, work: Path) -> None:
        """Opens it.

        Args:
            path: Where it belongs.
            work: The folder where it is until then, on the same file system.
        """
        self._path, self._temporary = path, (carried_in() or work) / f"{path.name}.{os.urandom(4).hex()}"
        self._is_kept = False
        self.file: IO[bytes] = self._temporary.open("w+b")

    def keep(self, *, spare: bool = False) -> None:
        """Closes the file and gives it its name, in place of that of another attempt.

        Args:
            spare: The client seldom needs it.
        """
        self.file.close()
        self._is_kept = True
        if not carry(self._temporary, self._path, spare=spare):
            self._temporary.replace(self._path)

    def close(self) -> None:
        """Closes it; one that was not kept is removed."""
        self.file.close()
        if not self._is_kept:
            with suppress(OSError):
                self._temporary.unlink()


@contextmanager
def removed_if_killed(folder: Path) -> Iterator[None]:
    """Has a process of its own watch this one. Workers stop within seconds where the folder is gone."""
    watch = subprocess.Popen([sys.executable, "-I", "-S", "-c", _WATCH, str(folder)], stdin=subprocess.PIPE, text=True,
                             start_new_session=True)
    try:
        yield
    finally:
        watch.communicate("done")
