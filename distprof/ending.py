"""Lets a command clean up when a signal asks it to end: the signal is raised as `Ended` in its main thread."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from distprof.errors import Ended
from distprof.system import SIGNALS, c_function

PR_SET_PDEATHSIG = 1


class _Ending:
    """The first signal, and whether it may be raised."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.holds = 0
        self.notes: int | None = None
        """File descriptor for paths that the parent process removes if this process crashes; None: there is none."""

    def on_signal(self, number: int, _: object) -> None:
        # a second signal must not interrupt the cleanup; a closed terminal sends several
        first, self.number = self.number is None, self.number or number
        if first and not self.holds:
            raise Ended(number)


_ENDING = _Ending()


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Raises `Ended` in the block when a signal arrives; ignored signals, such as with nohup, stay ignored.

    Does nothing outside the main thread.

    Raises:
        Ended: One of `SIGNALS` arrived; only the first raises.
    """
    if threading.current_thread() is not threading.main_thread():  # other threads cannot set handlers
        yield
        return
    _ENDING.number = None
    previous = {number: signal.getsignal(number) for number in SIGNALS}
    for number, handler in previous.items():
        if handler != signal.SIG_IGN:
            signal.signal(number, _ENDING.on_signal)
    try:
        yield
    finally:
        if _ENDING.number is None:  # else the process is ending, which another signal must not interrupt
            for number, handler in previous.items():
                signal.signal(number, handler)


@contextmanager
def held() -> Iterator[None]:
    """Defers signals to the end of the block, so that it runs completely.

    Raises:
        Ended: A signal arrived during the block.
    """
    before = _ENDING.number
    _ENDING.holds += 1
    try:
        yield
    finally:
        _ENDING.holds -= 1
    if before is None and _ENDING.number is not None and not _ENDING.holds:
        raise Ended(_ENDING.number)


def end_with_parent(name: str) -> None:
    """Makes the kernel send this process a signal, such as SIGKILL, when its parent ends; only on Linux."""
    prctl = c_function("prctl")
    if prctl is not None:
        prctl(PR_SET_PDEATHSIG, signal.Signals[name], 0, 0, 0)


def kill_workers() -> None:
    """Kills the worker processes of this process."""
    from multiprocessing import active_children

    for worker in active_children():
        worker.kill()


def note_paths_in(file: int) -> None:
    """Makes `note` write to an open file, for paths that would be left behind if this process crashed."""
    _ENDING.notes = file


def note(path: Path) -> None:
    """Writes a path to the file given to `note_paths_in`, if any."""
    if _ENDING.notes is not None:
        os.write(_ENDING.notes, os.fsencode(path.absolute()) + b"\0")
