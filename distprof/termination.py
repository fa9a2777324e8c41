"""What is flushed when the job is told to end: SIGTERM comes in, one call goes out, then the signal does its work.

torchrun ends the peers of a failed rank with SIGTERM. A Python handler alone would wait until the main thread leaves
its collective, which never happens; so a thread waits for the signal, flushes, and ends the process the way the
signal would have.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import weakref
from collections.abc import Callable
from typing import Any

STOP = 0
"""Byte in the pipe that ends the thread; no signal has this number."""


GRACE_S = 1.5
"""How long the main thread has to flush by itself, timeline included, before a thread does without it."""


class TerminationWatch:
    """Calls `flush` when SIGTERM arrives, wherever the main thread hangs; then the process ends as it would have.

    Args:
        flush: Takes the reason, and True on the main thread; gives False where it cannot be done right now.
    """

    def __init__(self, flush: Callable[[str, bool], bool]) -> None:
        self._flush = flush
        self._flushed = threading.Event()
        self._deferred = False
        self._previous: Any = None
        self._pipe: tuple[int, int] | None = None

    def start(self) -> None:
        """Begins to watch; does nothing outside of the main thread or where a wakeup descriptor is in use."""
        if threading.current_thread() is not threading.main_thread():
            return
        self._pipe = read, write = os.pipe()
        os.set_blocking(write, False)
        used = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        if used != -1:  # somebody else's, an event loop's for instance
            signal.set_wakeup_fd(used)
            self._close()
            return
        self._previous = signal.signal(signal.SIGTERM, self._on_signal)
        forget = weakref.WeakMethod(self._forget)  # what is registered here stays for the life of the process
        os.register_at_fork(after_in_child=lambda: (method := forget()) and method())
        threading.Thread(target=self._wait, args=(read,), name="distprof-sigterm", daemon=True).start()

    def stop(self) -> None:
        """Puts everything back."""
        if self._pipe is None or threading.current_thread() is not threading.main_thread():
            return
        signal.set_wakeup_fd(-1)
        if signal.getsignal(signal.SIGTERM) == self._on_signal:
            signal.signal(signal.SIGTERM, self._previous)
        os.write(self._pipe[1], bytes([STOP]))
        self.resume()

    def resume(self) -> None:
        """Sends a signal again that came while `flush` could not be done."""
        if self._deferred:
            self._deferred = False
            os.kill(os.getpid(), signal.SIGTERM)

    def _close(self) -> None:
        for end in self._pipe or ():
            os.close(end)
        self._pipe = None

    def _forget(self) -> None:
        # a forked data loader worker shares the pipe: its signals are not ours
        if self._pipe is not None:
            signal.set_wakeup_fd(-1)
            if signal.getsignal(signal.SIGTERM) == self._on_signal:
                signal.signal(signal.SIGTERM, self._previous)

    def _on_signal(self, number: int, frame: Any) -> None:
        # the main thread got here by itself; then the script's own handler has its turn, or the signal
        if self._previous != signal.SIG_IGN and not self._flush("signal SIGTERM", True):
            self._deferred = True  # `resume` or `stop` sends it again when the files are written
            return
        self._flushed.set()
        if callable(self._previous):
            self._previous(number, frame)
        elif self._previous == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

    def _wait(self, read: int) -> None:
        number = -1
        while number != signal.SIGTERM:
            number = os.read(read, 1)[0]
            if number == STOP:
                self._close()
                return
        done = self._flushed.wait(GRACE_S) or self._deferred
        if done or signal.getsignal(signal.SIGTERM) != self._on_signal or self._previous == signal.SIG_IGN:
            return  # the main thread does it, or the script has a handler of its own by now, or ignores the signal
        self._flush("signal SIGTERM", False)
        if self._previous == signal.SIG_DFL:
            # only the main thread may call signal.signal, and it may hang in a collective for good
            ctypes.CDLL(None).signal(signal.SIGTERM, 0)
            os.kill(os.getpid(), signal.SIGTERM)
