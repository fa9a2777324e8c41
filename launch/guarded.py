"""Runs a command under low resource limits, and reports in one line if one of them was reached.

Polars, Arrow and OpenBLAS abort the process, or print many lines, if they cannot get memory or threads. Therefore the
command runs in a child process whose stderr is buffered: either all of it is printed, or one line instead.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress

from distprof.ending import end_with_parent, note_paths_in
from distprof.launch.limits import reached, short
from distprof.system import SIGNALS

ALLOCATOR = b"<jemalloc>: "
"""Prefix of lines of polars' allocator, which are removed: it prints thousands if it cannot start a thread, although
it works without it."""
Outcome = int | str
"""The exit code of a command, or a line about the limit that was reached."""


def run_guarded(run: Callable[[], Outcome]) -> Outcome:
    """Runs a command in a child process, and prints its stderr unless a limit was reached.

    Returns:
        What the command returned; 128 + n if signal n ended it; a line about the likely limit if it crashed.
    """
    try:
        kept, notes = os.memfd_create("stderr"), os.memfd_create("notes")
        child = os.fork()
    except OSError as error:
        return reached(error) or short()
    if child == 0:
        _be_child(run, kept, notes)
    status = _wait_for(child)
    *temporary, outcome = _content(notes).split(b"\0")
    for path in temporary:  # exists only if the child could not clean up
        shutil.rmtree(path, ignore_errors=True)
    if outcome.isdigit():
        with suppress(OSError):
            os.write(2, b"".join(line for line in _content(kept).splitlines(keepends=True)
                                 if not line.startswith(ALLOCATOR)))
        return int(outcome)
    if outcome:
        return outcome.decode()
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if number in (*SIGNALS, signal.SIGKILL):
        return 128 + number
    return short()


def _be_child(run: Callable[[], Outcome], kept: int, notes: int) -> None:
    """Runs the command, writes its outcome to `notes` and never returns."""
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        end_with_parent("SIGTERM")
        os.dup2(kept, 2)
        os.close(kept)
        note_paths_in(notes)
        os.write(notes, str(run()).encode())
    finally:
        os._exit(0)


def _wait_for(child: int) -> int:
    """Waits for the child and returns its status; forwards signals to it in the meantime."""
    def forward(number: int, _: object) -> None:
        os.kill(child, number)

    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, forward)
    return os.waitpid(child, 0)[1]


def _content(file: int) -> bytes:
    with os.fdopen(file, "rb") as opened:
        opened.seek(0)
        return opened.read()
