"""Keeps two threads of one recording from writing its files at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE_S = 5.0
"""How long another thread may go on writing when the process is told to end."""


class Writing:
    """A lock of the rank folder, and whether the main thread holds it."""

    def __init__(self) -> None:
        self.now = False
        """True while the main thread writes: a signal handler on it must not."""
        self._lock = threading.RLock()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Puts a SIGTERM off: the thread that watches for it writes the same files, and so would its handler."""
        outer, self.now = self.now, True
        try:
            with self._lock:
                yield
        finally:
            self.now = outer

    @contextmanager
    def beside(self) -> Iterator[None]:
        """For a thread that writes while the script goes on: a SIGTERM need not wait for the main thread."""
        with self._lock:
            yield

    @contextmanager
    def at_the_end(self) -> Iterator[None]:
        """Waits for a write that goes on, a while.

        Raises:
            TimeoutError: It does not end.
        """
        if not self._lock.acquire(timeout=PATIENCE_S):
            raise TimeoutError("a write to the run directory does not return")
        try:
            yield
        finally:
            self._lock.release()
