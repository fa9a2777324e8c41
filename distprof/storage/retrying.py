"""Repeats requests while a storage is busy or the network is broken, with limited waiting.

It also counts the results of a listing, and ends one that is endless: a server may always claim that there is more.
"""

from __future__ import annotations

import errno
import os
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from distprof.errors import StorageError
from distprof.storage.faults import LIES, NETWORK, Kind, RemoteError, fault_of, raised
from distprof.terminal import say
from distprof.threads import is_scarce

Result = TypeVar("Result")
PATIENCE_S = 60.0
"""Time in seconds during which a request is repeated, unless `VARIABLE` is set."""
VARIABLE = "DISTPROF_STORAGE_PATIENCE"
FIRST_S, LONGEST_S = 0.1, 8.0
"""Shortest and longest pause between repetitions in seconds; each is twice as long as the one before."""
LONG_S = 3.0
"""Time in seconds after which repetitions are reported."""
WAITED_S = 5.0
"""Time in seconds after which waiting for an answer is reported."""
QUIET_S = 30.0
"""Minimum time in seconds between two such reports: many requests may wait in parallel."""
LEAST_S = 10.0
"""Minimum time in seconds to wait for an answer, even if the patience for errors is set to less."""
UNIT_BYTES = 1 << 20
"""Bytes of content for which a request may take its time again: a slower one is abandoned, however steadily it
delivers."""


class _Told:
    """Limits how often waiting for an answer is reported."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until = 0.0

    def say(self, line: str) -> None:
        """Prints a line, unless another one was printed recently."""
        with self._lock:
            if time.monotonic() < self._until:
                return
            self._until = time.monotonic() + QUIET_S
        say(line)


_TOLD = _Told()
_OWN = threading.local()
"""`until`: when nobody waits for the request of this thread any more (`time.monotonic`)."""


def persistently(place: str, work: Callable[[], Result], *, num_bytes: int = 0) -> Result:
    """Returns the result of `work` once it succeeds.

    Args:
        place: A URL, for messages.
        work: May be called several times; it is abandoned if it takes too long.
        num_bytes: Number of bytes that it transfers, which extends the time limit.

    Raises:
        StorageError: The storage refuses the credentials, or did not answer in time.
        RemoteError: The object is not available.
    """
    began, pause, told = time.monotonic(), FIRST_S, False
    while True:
        try:
            return _within(allowed_s(num_bytes) - (time.monotonic() - began), place, work)
        except Exception as error:
            fault = fault_of(error)
            passed = time.monotonic() - began
            if fault.kind is not Kind.AGAIN or passed + pause > patience_s():
                raise raised(error, place) from error
            if passed > LONG_S and not told:
                told = True
                say(f"{place}: {fault.what}; retrying for up to {patience_s():g} s")
        time.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(2 * pause, LONGEST_S)


def _within(seconds: float, place: str, work: Callable[[], Result]) -> Result:
    """Returns the result of `work`, running it in a thread that is abandoned if it takes longer."""
    if is_scarce():  # starting a thread that gets no memory would wait forever
        return work()
    done = Future[Result]()
    threading.Thread(target=_settle, args=(done, work, time.monotonic() + seconds), daemon=True).start()
    if wait([done], min(WAITED_S, seconds)).not_done:
        _TOLD.say(f"{place}: waiting for an answer, up to {seconds:.3g} s")
        if wait([done], max(seconds - WAITED_S, 0)).not_done:
            raise TimeoutError(f"no complete answer within {seconds:.3g} s")
    return done.result()


def _settle(done: Future[Result], work: Callable[[], Result], until: float) -> None:
    _OWN.until = until
    try:
        done.set_result(work())
    except BaseException as error:  # noqa: BLE001 (raised by the waiting thread)
        done.set_exception(error)


def awaited(loop: object, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Returns the result of a coroutine on fsspec's loop; it is cancelled when nobody waits for it any more."""
    from fsspec.asyn import sync

    until = getattr(_OWN, "until", None)
    seconds = None if until is None else max(until - time.monotonic(), 0.001)
    return sync(loop, call, *arguments, timeout=seconds, **options)


def allowed_s(num_bytes: int) -> float:
    """Returns the time limit in seconds of a request that transfers this many bytes."""
    return max(patience_s(), LEAST_S) * (1 + num_bytes / UNIT_BYTES)


def patience_s() -> float:
    """Returns the time in seconds during which requests are repeated."""
    try:
        return max(float(os.environ.get(VARIABLE, PATIENCE_S)), 0.0)
    except ValueError:
        return PATIENCE_S


MOST_OBJECTS = 2_000_000
"""Maximum number of objects of a listing; a run of 16,384 ranks has a tenth of that."""
MOST_FOLDERS = 200_000
MOST_DEPTH = 32
"""Maximum nesting depth of folders; a run has four levels."""
PER_PATIENCE = 100
"""Number of objects for which a listing may take the time limit of a request again."""


class Tally:
    """Counts the results of one listing; several threads may count in parallel.

    Args:
        url: The URL that is listed.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._began = time.monotonic()
        self._told_at_s = LONG_S
        self._objects = self._folders = 0
        self._lock = threading.Lock()

    def took(self, *, objects: int = 0, folders: int = 0, depth: int = 0) -> None:
        """Counts new results.

        Args:
            objects: Number of additional objects.
            folders: Number of additional folders.
            depth: Nesting depth of these folders.

        Raises:
            RemoteError: There are more than anybody stores.
            StorageError: They arrive too slowly.
        """
        with self._lock:
            self._objects += objects
            self._folders += folders
            passed = time.monotonic() - self._began
            tells = passed > self._told_at_s
            self._told_at_s = 2 * passed if tells else self._told_at_s
        if tells:
            say(f"{self._url}: {self._objects:,} objects listed so far")
        if self._objects > MOST_OBJECTS or self._folders > MOST_FOLDERS or depth > MOST_DEPTH:
            raise self.endless()
        if passed > allowed_s(0) * (1 + self._objects / PER_PATIENCE):
            raise StorageError(f"cannot list {self._url}: {self._objects:,} objects in {passed:.3g} s", hint=NETWORK)

    def endless(self) -> RemoteError:
        """Returns the error for a listing that is endless."""
        return RemoteError(errno.EIO, f"its listing does not end: {self._objects:,} objects in {self._folders:,} "
                                      "folders so far", self._url, LIES)
