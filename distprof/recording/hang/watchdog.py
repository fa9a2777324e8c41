"""A thread that notices when there was no progress for too long, and when it resumes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Hashable

LONGEST_SLEEP_S = 10.0
LEAST_LIMIT_S = 30.0
STEPS = 20
"""Times the longest step so far."""
AFTERWARDS_S = 300.0
VARIABLE = "DISTPROF_HANG_SECONDS"


def limit_s(longest_step_s: float | None) -> float:
    """Seconds without progress after which a rank is taken to hang; DISTPROF_HANG_SECONDS sets it.

    Args:
        longest_step_s: Of the steps so far; None after the last pass.
    """
    try:
        given = float(os.environ.get(VARIABLE, ""))
    except ValueError:
        given = 0.0
    if given > 0:
        return given
    return AFTERWARDS_S if longest_step_s is None else max(LEAST_LIMIT_S, STEPS * longest_step_s)


class Watchdog:
    """Calls back when what it looks at has not changed for long, and when it changes again. It sleeps in between.

    Args:
        look: Returns a value that changes if and only if there is progress.
        limit: Seconds without progress that are too many.
        stuck: Called once per hang, with the seconds without progress.
        goes_on: Called when there is progress afterwards.
    """

    def __init__(self, look: Callable[[], Hashable], limit: Callable[[], float], stuck: Callable[[float], None],
                 goes_on: Callable[[], None]) -> None:
        self._look = look
        self._limit = limit
        self._stuck = stuck
        self._goes_on = goes_on
        self._over = threading.Event()

    def start(self) -> None:
        """Begins to watch."""
        threading.Thread(target=self._watch, name="distprof-watchdog", daemon=True).start()

    def stop(self) -> None:
        """Ends the thread."""
        self._over.set()

    def _watch(self) -> None:
        seen, since, reported = self._look(), time.monotonic(), False
        while not self._over.wait(min(LONGEST_SLEEP_S, self._limit() / 4)):
            try:
                now = self._look()
                if now != seen:
                    seen, since = now, time.monotonic()
                    if reported:
                        self._goes_on()
                        reported = False
                elif not reported and time.monotonic() - since >= self._limit():
                    reported = True
                    self._stuck(time.monotonic() - since)
            except Exception:  # noqa: BLE001 (to look is never a reason to fail)
                continue
