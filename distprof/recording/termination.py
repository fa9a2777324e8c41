"""Flushes what was recorded when the process gets a signal to end, then lets the signal take effect.

torchrun ends the peers of a failed rank with SIGTERM, often while they hang in a collective, where no handler in Python
would run. So a handler in C (`compiled/signals.c`), which the script cannot see, wakes a thread. Where the signal ends
the process, the thread first asks the main thread to flush, by a real-time signal that nobody else uses, then flushes
without it, and ends the process. Where the script handles the signal, nothing is done, unless the main thread hangs.

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
"""How long another thread may go on writing when the process is told to end."""


class Writing:
    """A lock of the rank folder, and whether the main thread holds it."""

    def __init__(self) -> None:
        self.now = False
        """True while the main thread writes: a signal handler on it must not."""
        self._lock = reentrant_lock()

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
            raise TimeoutError("a write to the run directory hangs")
        try:
            yield
        finally:
            self._lock.release()


WATCHED = (signal.SIGTERM, signal.SIGINT)
LOOK_S = 1.0
"""How often it is looked whether the script has set a handler, in front of which ours goes again."""
STOPPED, NO_SIGNAL = 0, -1
"""What `signal_wait` returns besides signals."""
GRACE_S = 1.5
"""How long the main thread has to flush by itself, timeline included, before a thread does without it."""
WRITING_S = 15.0
"""How long a write of the main thread may hold up the end, for which torchrun waits 30 s: file systems may hang."""
AGAIN_S = 0.02
"""After that the main thread is asked again: it was in the midst of an operator, or just about to sleep."""
REACTION_S = 5.0
"""How long the main thread may stay where it is, where the script handles a signal, before it is taken to hang in C."""


class Flush(Enum):
    """What became of the wish to write what was recorded."""

    DONE = "done"
    LATER = "later"
    """The main thread is writing, and calls `resume` afterwards."""
    SOON = "soon"
    """The main thread is in the midst of an operator, which is over in a moment, unless it hangs."""


class TerminationWatch:
    """Calls `flush` when a signal is about to end the process, wherever the main thread hangs.

    Args:
        flush: Called with the reason, and True on the main thread.
        arrived: Called at once, on a thread of its own, with the signal, and whether it ends the process.
    """

    def __init__(self, flush: Callable[[str, bool], Flush], arrived: Callable[[int, bool], None]) -> None:
        self._flush = flush
        self._arrived = arrived
        self._thread: UnseenThread | None = None
        self._ending = 0
        """The signal that ends the process."""
        self._asked: int | None = None
        """The signal by which the main thread is asked; None where the recording was not started on it."""
        self._flushing = self._stopped = False
        self._became: Flush | None = None

    def start(self) -> None:
        """Begins to watch; does nothing where there is no compiled library."""
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
        """Takes our handlers away and ends the thread; a signal that came meanwhile takes effect first."""
        if self._thread is None or self._stopped:
            return
        self._stopped = True
        library().signal_stop()
        here = threading.get_ident()
        if self._asked is not None and here == threading.main_thread().ident:
            signal.signal(self._asked, signal.SIG_DFL)
        if self._ending and not self._flushing and not is_unseen(here):
            self._thread.join(WRITING_S)  # the script must not go on until then

    def resume(self) -> None:
        """Flushes on the main thread for a signal that came while that was not possible."""
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
            self._thread.join(WRITING_S)  # until the signal takes effect: the script would not go on either

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
        """The script handles the signal, if its main thread still runs Python; returns the next signal.

        The main thread is not asked: the wakeup descriptor of the script would tell it of our signal as well.
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
        """Flushes, then ends the process as the signal would have."""
        self._ending = number
        with suppress(Exception):
            self._arrived(number, True)
        if not self._main_thread_flushes():
            self._flush(_reason(number), False)
        library().signal_end(number)

    def _main_thread_flushes(self) -> bool:
        """True once it did, within the time that it has."""
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
        """Has the main thread call `_on_main_thread`, as soon as it runs Python; False where it cannot be asked."""
        main = threading.main_thread().ident
        if self._asked is None or main is None:
            return False
        signal.pthread_kill(main, self._asked)
        return True


def _place_of_main_thread() -> tuple[int, int] | None:
    """Where it is in Python: another one soon, unless it hangs or waits in C."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return (id(frame), frame.f_lasti) if frame is not None else None


def _unused_signal() -> int | None:
    """A real-time signal without a handler, from the end: from the start they are taken by others."""
    if not hasattr(signal, "SIGRTMIN"):
        return None
    free = (number for number in range(signal.SIGRTMAX - 1, signal.SIGRTMIN, -1)
            if signal.getsignal(number) == signal.SIG_DFL)
    return next(free, None)


def _reason(number: int) -> str:
    return f"signal {signal.Signals(number).name}"
