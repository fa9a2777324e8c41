"""Threads for work that is done side by side, and none where a process has so little address space that they may die;
and threads in the process of a script, which does not see them.

A thread that gets no memory while it starts is never noticed by the one that started it, which waits for ever.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

from distprof.own import _thread
from distprof.system import all_blocked, limit_of

SCARCE_BYTES = 4 << 30
"""Address space below which memory is taken to be short."""


class InlineExecutor(Executor):
    """Does what is submitted at once, in the thread that submits it."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Its result, or what it raised."""
        done = Future[Any]()
        try:
            done.set_result(work(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 (it is raised by result())
            done.set_exception(error)
        return done


def thread_pool(workers: int | None = None) -> Executor:
    """So many threads; None: as many as the machine can use."""
    return InlineExecutor() if is_scarce() else ThreadPoolExecutor(workers)


def is_scarce() -> bool:
    """True where this process may not have `SCARCE_BYTES` of address space."""
    most = limit_of("AS")
    return most is not None and most < SCARCE_BYTES


class UnseenThread:
    """A daemon thread that `threading` does not know of, and that gets no signal.

    Scripts wait for all threads there are, count them, name them, and give them a function that traces or profiles;
    some block signals and wait for them, and a thread that does not would get them instead. What the thread itself
    starts inherits that. It must not call `threading.current_thread`, which makes it known, or `stay_unseen` then.
    """

    def __init__(self, target: Callable[..., object], *arguments: Any) -> None:
        """Of a function that raises nothing."""
        self._target, self._arguments = target, arguments
        self._running = _thread.allocate_lock()
        self._process = 0

    def start(self) -> None:
        """Begins to run.

        Raises:
            RuntimeError: There can be no more threads.
        """
        self._running.acquire()
        self._process = os.getpid()
        try:
            with all_blocked():
                _thread.start_new_thread(self._run, ())
        except BaseException:
            self._running.release()
            raise

    def join(self, seconds: float | None = None) -> bool:
        """Waits until it has ended, or so long; true if it has."""
        if self.is_alive() and self._running.acquire(timeout=-1 if seconds is None else max(seconds, 0)):
            self._running.release()
        return not self.is_alive()

    def is_alive(self) -> bool:
        """True while it runs; in a child that was forked it does not."""
        return self._running.locked() and self._process == os.getpid()

    def _run(self) -> None:
        _unseen[_thread.get_ident()] = self._process
        try:
            self._target(*self._arguments)
        finally:
            _unseen.pop(_thread.get_ident(), None)
            self._running.release()


def stay_unseen() -> None:
    """Of the calling thread: a library that it called may have asked for `threading.current_thread`."""
    getattr(threading, "_active", {}).pop(_thread.get_ident(), None)


_unseen: dict[int, int] = {}
"""The `ident` of each -> the process it runs in."""


def running() -> list[int]:
    """The `ident` of each unseen thread of this process."""
    return [ident for ident, process in [*_unseen.items()] if process == os.getpid()]


def is_unseen(ident: int) -> bool:
    """Whether that is one of them."""
    return _unseen.get(ident) == os.getpid()
