"""Writes what was recorded when a signal is about to end the process, then lets the signal take effect.

torchrun ends the peers of a failed rank with SIGTERM, often while they hang in a collective, where no Python handler
would run. So a handler in C (`compiled/signals.c`), which the script cannot see, wakes a thread. If the signal ends the
process, the thread first asks the main thread to write, by an otherwise unused real-time signal, then writes without
it, and ends the process. If the script handles the signal, nothing is done, unless the main thread hangs.

Two threads of one recording never write its files at once.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum

from distprof.compiled.library import library
from distprof.own import reentrant_lock, time
from distprof.threads import UnseenThread, is_unseen

PATIENCE_S = 5.0
"""Maximum time in seconds that another thread may continue to write when the process is told to end."""


class Writing:
    """A lock of the rank's folder that knows whether the main thread holds it."""

    def __init__(self) -> None:
        self.now = False
        """True while the main thread writes: a signal handler on that thread must not write then."""
        self._lock = reentrant_lock()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Holds the lock on the main thread; a SIGTERM waits, since its handler and thread write the same files."""
        outer, self.now = self.now, True
        try:
            with self._lock:
                yield
        finally:
            self.now = outer

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Holds the lock on a thread while the script continues; a SIGTERM does not wait for the main thread."""
        with self._lock:
            yield

    @contextmanager
    def at_the_end(self) -> Iterator[None]:
        """Holds the lock, after waiting for a running write for at most `PATIENCE_S`.

        Raises:
            TimeoutError: The running write does not end.
        """
        if not self._lock.acquire(timeout=PATIENCE_S):
            raise TimeoutError("a write to the run directory hangs")
        try:
            yield
        finally:
            self._lock.release()


WATCHED = (signal.SIGTERM, signal.SIGINT)
LOOK_S = 1.0
"""Time in seconds between two checks whether the script has installed a handler, which ours then precedes again."""
STOPPED, NO_SIGNAL = 0, -1
"""Results of `signal_wait` that are no signals."""
GRACE_S = 1.5
"""Time in seconds for the main thread to write by itself, timeline included, before another thread writes."""
WRITING_S = 15.0
"""Time in seconds that a write of the main thread may delay the end, as file systems may hang; torchrun waits 30 s."""
AGAIN_S = 0.02
"""Time in seconds until the main thread is asked again: it was inside an operator, or just about to sleep."""
REACTION_S = 5.0
"""Time in seconds after a signal that the script handles, after which a main thread that stays at the same place is
assumed to hang in C."""


class Flush(Enum):
    """The result of a request to write what was recorded."""

    DONE = "done"
    LATER = "later"
    """The main thread is writing, and calls `resume` afterwards."""
    SOON = "soon"
    """The main thread is inside an operator, which ends in a moment unless it hangs."""


class TerminationWatch:
    """Calls `flush` when a signal is about to end the process, even if the main thread hangs.

    Args:
        flush: Called with the reason, and whether this is the main thread.
        arrived: Called at once, on a separate thread, with the signal and whether it ends the process.
    """

    def __init__(self, flush: Callable[[str, bool], Flush], arrived: Callable[[int, bool], None]) -> None:
        self._flush = flush
        self._arrived = arrived
        self._thread: UnseenThread | None = None
        self._ending = 0
        """The signal that ends the process; 0 for none."""
        self._asked: int | None = None
        """The signal by which the main thread is asked; None if the recording was not started on the main thread."""
        self._flushing = self._stopped = False
        self._became: Flush | None = None

    def start(self) -> None:
        """Begins to watch; does nothing without the compiled library."""
        compiled = library()
        if compiled is None:
            return
        if threading.get_ident() == threading.main_thread().ident:
            self._asked = _unused_signal()
        if self._asked is not None:
            signal.signal(self._asked, self._on_main_thread)
        compiled.signal_start()
        self._look()
        self._thread = UnseenThread(self._watch)
        self._thread.start()

    def stop(self) -> None:
        """Removes our handlers and ends the thread; a signal that came meanwhile takes effect first."""
        if self._thread is None or self._stopped:
            return
        self._stopped = True
        library().signal_stop()
        here = threading.get_ident()
        if self._asked is not None and here == threading.main_thread().ident:
            signal.signal(self._asked, signal.SIG_DFL)
        if self._ending and not self._flushing and not is_unseen(here):
            self._thread.join(WRITING_S)  # the script must not continue before

    def resume(self) -> None:
        """Writes on the main thread for a signal that came while writing was not possible."""
        if self._became is Flush.LATER:
            self._flush_here()

    # --- on the main thread --------------------------------------------------------------------------------------

    def _on_main_thread(self, number: int, frame: object) -> None:
        if self._ending and not self._flushing and self._became in (None, Flush.SOON):
            self._flush_here()

    def _flush_here(self) -> None:
        self._flushing = True
        self._became = self._flush(_reason(self._ending), True)
        self._flushing = False
        if self._became is Flush.DONE and self._thread is not None:
            self._thread.join(WRITING_S)  # until the signal takes effect, so that the script does not continue

    # --- on a thread of its own ----------------------------------------------------------------------------------

    def _watch(self) -> None:
        number = self._next(LOOK_S)
        while number != STOPPED:
            if number == NO_SIGNAL:
                self._look()
                number = self._next(LOOK_S)
            elif library().signal_is_fatal(number):
                self._end(number)
                return
            else:
                number = self._on_handled(number)

    def _next(self, seconds: float) -> int:
        return int(library().signal_wait(seconds))

    def _look(self) -> None:
        for number in WATCHED:
            library().signal_watch(number)

    def _on_handled(self, number: int) -> int:
        """Waits until the main thread runs Python, for a signal that the script handles; returns the next signal.

        The main thread is not asked to write: the script's wakeup descriptor would also report our signal.
        """
        self._arrived(number, False)
        was_at, until = _place_of_main_thread(), time.monotonic() + REACTION_S
        while self._asked is not None and not self._stopped and _place_of_main_thread() == was_at:
            if (another := self._next(AGAIN_S)) != NO_SIGNAL:
                return another
            if time.monotonic() > until:
                self._flush(_reason(number), False)
                break
        return NO_SIGNAL

    def _end(self, number: int) -> None:
        """Writes, then ends the process as the signal would have."""
        self._ending = number
        with suppress(Exception):
            self._arrived(number, True)
        if not self._main_thread_flushes():
            self._flush(_reason(number), False)
        library().signal_end(number)

    def _main_thread_flushes(self) -> bool:
        """Returns whether the main thread has written in the time that it has."""
        until, longest = time.monotonic() + GRACE_S, time.monotonic() + WRITING_S
        while not self._stopped and self._became is not Flush.DONE:
            if self._became is Flush.LATER:
                until = min(time.monotonic() + GRACE_S, longest)  # it is writing
            elif not self._ask():
                return False
            if time.monotonic() > until:
                return False
            time.sleep(AGAIN_S)
        return True

    def _ask(self) -> bool:
        """Makes the main thread call `_on_main_thread` as soon as it runs Python; False if it cannot be asked."""
        main = threading.main_thread().ident
        if self._asked is None or main is None:
            return False
        signal.pthread_kill(main, self._asked)
        return True


def _place_of_main_thread() -> tuple[int, int] | None:
    """Returns its place in the Python code, which changes soon unless the thread hangs or waits in C."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return (id(frame), frame.f_lasti) if frame is not None else None


def _unused_signal() -> int | None:
    """Returns an unused real-time signal, searched from the last one: the first ones are used by others."""
    if not hasattr(signal, "SIGRTMIN"):
        return None
    free = (number for number in range(signal.SIGRTMAX - 1, signal.SIGRTMIN, -1)
            if signal.getsignal(number) == signal.SIG_DFL)
    return next(free, None)


def _reason(number: int) -> str:
    return f"signal {signal.Signals(number).name}"
