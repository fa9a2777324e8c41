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
    """The signal that came first, and whether it may be raised."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.holds = 0
        self.notes: int | None = None
        """File for paths that whoever watches this process removes if it crashes."""

    def on_signal(self, number: int, _: object) -> None:
        # a second signal must not interrupt the cleaning up; a closed terminal sends several
        first, self.number = self.number is None, self.number or number
        if first and not self.holds:
            raise Ended(number)


_ENDING = _Ending()


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Raises `Ended` here when a signal arrives; those that the process ignores, as under nohup, stay ignored.

    Raises:
        Ended: By one of `SIGNALS`, once.
    """
    if threading.current_thread() is not threading.main_thread():  # others cannot set handlers
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
        if _ENDING.number is None:  # else the process is about to end, and nothing may interrupt that
            for number, handler in previous.items():
                signal.signal(number, handler)


@contextmanager
def held() -> Iterator[None]:
    """What is done in here is done whole: a signal that comes meanwhile is raised at its end.

    Raises:
        Ended: A signal came meanwhile.
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
    """Has the kernel send this process a signal, like SIGKILL, when its parent ends; only Linux can."""
    prctl = c_function("prctl")
    if prctl is not None:
        prctl(PR_SET_PDEATHSIG, signal.Signals[name], 0, 0, 0)


def kill_workers() -> None:
    """Ends the worker processes of this process at once."""
    from multiprocessing import active_children

    for worker in active_children():
        worker.kill()


def note_paths_in(file: int) -> None:
    """Makes this process write down, in an open file, what it would leave behind if it crashed."""
    _ENDING.notes = file


def note(path: Path) -> None:
    """Writes down a path, where somebody wants to know."""
    if _ENDING.notes is not None:
        os.write(_ENDING.notes, os.fsencode(path.absolute()) + b"\0")
