"""Flushes what was recorded when the process gets a signal to end, then lets the signal take effect.

torchrun ends the peers of a failed rank with SIGTERM. A Python handler alone would wait until the main thread leaves
its collective, which never happens; so a thread waits for the signal, flushes, and ends the process the way the
signal would have. SIGINT is left to Python: only if the main thread does not react to it, what was recorded is
flushed.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Any

STOP = 0
"""Byte in the pipe that ends the thread; no signal has this number."""
GRACE_S = 1.5
"""How long the main thread has to flush by itself, timeline included, before a thread does without it."""
WRITING_S = 15.0
"""How long a write of the main thread may hold up the end, for which torchrun waits 30 s: file systems may hang."""
AGAIN_S = 0.01
"""After that the signal is sent again to a main thread that got it in the midst of an operator."""
INTERRUPT_GRACE_S = 5.0
"""How long the main thread has to react to a SIGINT before it is taken to hang in C."""


class Flush(Enum):
    """What became of the wish to write what was recorded."""

    DONE = "done"
    LATER = "later"
    """The main thread is writing, and calls `resume` afterwards."""
    SOON = "soon"
    """The signal came in the midst of an operator, which is over in a moment, unless it hangs."""


class TerminationWatch:
    """Calls `flush` when SIGTERM arrives, wherever the main thread hangs; then the process ends as it would have.

    Args:
        flush: Called with the reason, and True on the main thread.
        arrived: Called at once with the signal, on a thread of its own, on the main thread, or on both.
    """

    def __init__(self, flush: Callable[[str, bool], Flush], arrived: Callable[[int], None]) -> None:
        self._flush = flush
        self._arrived = arrived
        self._flushed = threading.Event()
        self._deferred = False
        self._again = False
        self._stopping = self._stopped = False
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
        """Restores the handlers of the script and ends the thread."""
        if self._pipe is None or self._stopping or threading.current_thread() is not threading.main_thread():
            return
        self._stopping = True
        self._restore()
        with suppress(OSError):  # the script closed all files
            os.write(self._pipe[1], bytes([STOP]))
        self._stopped = True  # not earlier: the thread closes the pipe then
        self.resume()

    def resume(self) -> None:
        """Sends the signal again that came while `flush` was not possible."""
        if self._deferred:
            self._deferred = False
            os.kill(os.getpid(), signal.SIGTERM)

    def _close(self) -> None:
        for end in self._pipe or ():
            os.close(end)
        self._pipe = None

    def _restore(self) -> None:
        signal.set_wakeup_fd(-1)
        if signal.getsignal(signal.SIGTERM) == self._on_signal:
            signal.signal(signal.SIGTERM, self._previous)

    def _forget(self) -> None:
        # a forked data loader worker shares the pipe: its signals are not ours
        if self._pipe is not None:
            self._restore()

    def _on_signal(self, number: int, frame: Any) -> None:
        # the main thread got here by itself; then the script's own handler has its turn, or the signal
        if self._previous != signal.SIG_IGN:
            self._arrived(number)
        if self._previous != signal.SIG_IGN:
            became = self._flush("signal SIGTERM", True)
            self._deferred = became is Flush.LATER  # `resume` or `stop` sends it again when the files are written
            self._again = became is Flush.SOON  # the thread does
            if became is not Flush.DONE:
                return
        self._flushed.set()
        if callable(self._previous):
            self._previous(number, frame)
        elif self._previous == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

    def _wait(self, read: int) -> None:
        number: int | None = -1
        while number != signal.SIGTERM:
            number = _next(read)
            if number is None:
                return
            if number == STOP:
                self._close()
                return
            if number == signal.SIGINT:
                self._arrived(number)
                if _main_thread_hangs(read):
                    self._flush("signal SIGINT", False)
        if not self._is_left_to_the_script():
            self._arrived(number)
        flushes = self._main_thread_flushes()
        if self._stopped:
            self._close()
        if flushes or self._is_left_to_the_script():
            return
        self._flush("signal SIGTERM", False)
        if self._previous == signal.SIG_DFL:
            # only the main thread may call signal.signal, and it may hang in a collective for good
            ctypes.CDLL(None).signal(signal.SIGTERM, 0)
        if self._previous == signal.SIG_DFL or self._again:
            os.kill(os.getpid(), signal.SIGTERM)

    def _main_thread_flushes(self) -> bool:
        """True if it did or will, within the time that it has; sends the signal again where it came too early."""
        until, longest = time.monotonic() + GRACE_S, time.monotonic() + WRITING_S
        while not self._flushed.wait(AGAIN_S) and not self._stopped:
            if self._deferred:
                until = min(time.monotonic() + GRACE_S, longest)  # it is writing
            if time.monotonic() >= until:
                return False
            if self._again:
                self._again = False
                os.kill(os.getpid(), signal.SIGTERM)
        return True

    def _is_left_to_the_script(self) -> bool:
        """True where the script has a handler of its own by now, or ignored the signal before."""
        return signal.getsignal(signal.SIGTERM) != self._on_signal or self._previous == signal.SIG_IGN


def _next(read: int) -> int | None:
    try:
        return os.read(read, 1)[0]
    except (OSError, IndexError):
        return None  # the script closed all files, those of others too; the handler on the main thread is still there


def _main_thread_hangs(read: int) -> bool:
    """True where the main thread has not moved when the time is over; another signal ends the wait."""
    before = _place_of_main_thread()
    another, _, _ = select.select([read], [], [], INTERRUPT_GRACE_S)
    return not another and before is not None and _place_of_main_thread() == before


def _place_of_main_thread() -> tuple[int, int] | None:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return None if frame is None else (id(frame), frame.f_lasti)
