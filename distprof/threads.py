"""Thread pools, which run inline if address space is scarce; and threads that are invisible to the script.

If a thread gets no memory while it starts, Python never notices, and the thread that started it waits forever.
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
"""A limit on address space below this number of bytes counts as scarce."""


class InlineExecutor(Executor):
    """An executor that runs work immediately in the calling thread."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Runs the work; returns a completed future with its result or exception."""
        done = Future[Any]()
        try:
            done.set_result(work(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 (result() raises it)
            done.set_exception(error)
        return done


def thread_pool(workers: int | None = None) -> Executor:
    """Returns an executor with this many threads (None: the default of Python), or inline if memory is scarce."""
    return InlineExecutor() if is_scarce() else ThreadPoolExecutor(workers)


def is_scarce() -> bool:
    """Returns whether the address space of this process is limited to less than `SCARCE_BYTES`."""
    most = limit_of("AS")
    return most is not None and most < SCARCE_BYTES


class UnseenThread:
    """A daemon thread that `threading` does not know, and that receives no signals.

    Scripts may wait for all threads, count them, name them, or set trace and profile functions for them. Some block
    signals and wait for them; another thread that does not block them would receive them instead. Threads that this
    thread starts inherit its blocked signals. It must not call `threading.current_thread`, which registers it, or must
    call `stay_unseen` afterwards.
    """

    def __init__(self, target: Callable[..., object], *arguments: Any) -> None:
        """Takes a function that does not raise, and its arguments."""
        self._target, self._arguments = target, arguments
        self._running = _thread.allocate_lock()
        self._process = 0

    def start(self) -> None:
        """Starts the thread.

        Raises:
            RuntimeError: No more threads can be started.
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
        """Waits until the thread has ended, for at most `seconds` (None: without limit); returns whether it has."""
        if self.is_alive() and self._running.acquire(timeout=-1 if seconds is None else max(seconds, 0)):
            self._running.release()
        return not self.is_alive()

    def is_alive(self) -> bool:
        """Returns whether the thread is running; False in a forked child."""
        return self._running.locked() and self._process == os.getpid()

    def _run(self) -> None:
        _unseen[_thread.get_ident()] = self._process
        try:
            self._target(*self._arguments)
        finally:
            _unseen.pop(_thread.get_ident(), None)
            self._running.release()


def stay_unseen() -> None:
    """Unregisters the calling thread, in case a library called `threading.current_thread`, which registers it."""
    getattr(threading, "_active", {}).pop(_thread.get_ident(), None)


_unseen: dict[int, int] = {}
"""`ident` of each unseen thread -> id of its process."""


def running() -> list[int]:
    """Returns the `ident` of each unseen thread of this process."""
    return [ident for ident, process in [*_unseen.items()] if process == os.getpid()]


def is_unseen(ident: int) -> bool:
    """Returns whether `ident` is an unseen thread of this process."""
    return _unseen.get(ident) == os.getpid()
