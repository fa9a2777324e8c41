"""Tries requests again for as long as a storage is busy or the network broken, and waits for none without end.

Counts what a listing brings, and ends one that has no end: a server may say that there is always more.
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
"""How long the same request is tried; `VARIABLE` says otherwise."""
VARIABLE = "DISTPROF_STORAGE_PATIENCE"
FIRST_S, LONGEST_S = 0.1, 8.0
"""Pauses: each is twice as long as the one before."""
LONG_S = 3.0
"""What takes longer is said."""
WAITED_S = 5.0
"""What is waited for longer is said likewise."""
QUIET_S = 30.0
"""After a line on an answer that is waited for: many requests may wait side by side."""
LEAST_S = 10.0
"""An answer is waited for at least so long: the patience may be less, for errors."""
UNIT_BYTES = 1 << 20
"""Of content, for which a request may take as long again: slower is no use, however it trickles."""


class _Told:
    """When somebody last said that an answer is waited for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until = 0.0

    def say(self, line: str) -> None:
        """Says it, unless another line was said just now."""
        with self._lock:
            if time.monotonic() < self._until:
                return
            self._until = time.monotonic() + QUIET_S
        say(line)


_TOLD = _Told()
_OWN = threading.local()
"""Of the thread that makes a request: `until`, when nobody waits for it any more."""


def persistently(place: str, work: Callable[[], Result], *, num_bytes: int = 0) -> Result:
    """What the work gives, once it succeeds.

    Args:
        place: A URL, for messages.
        work: May be called several times; it is left behind where it takes too long.
        num_bytes: That it moves: the more, the longer it may take.

    Raises:
        StorageError: The storage refuses the keys, or did not answer in time.
        RemoteError: The object cannot be had.
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
    """What the work gives, in a thread that is left behind where it takes longer."""
    if is_scarce():  # a thread that gets no memory is waited for without end
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
    except BaseException as error:  # noqa: BLE001 (whoever waits raises it)
        done.set_exception(error)


def awaited(loop: object, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """What a coroutine gives, on the loop of fsspec; one for which nobody waits any more is ended."""
    from fsspec.asyn import sync

    until = getattr(_OWN, "until", None)
    seconds = None if until is None else max(until - time.monotonic(), 0.001)
    return sync(loop, call, *arguments, timeout=seconds, **options)


def allowed_s(num_bytes: int) -> float:
    """How long a request may take that moves so many bytes."""
    return max(patience_s(), LEAST_S) * (1 + num_bytes / UNIT_BYTES)


def patience_s() -> float:
    """The limit that is set."""
    try:
        return max(float(os.environ.get(VARIABLE, PATIENCE_S)), 0.0)
    except ValueError:
        return PATIENCE_S


MOST_OBJECTS = 2_000_000
"""A run of 16,384 ranks has a tenth of that."""
MOST_FOLDERS = 200_000
MOST_DEPTH = 32
"""Folders within folders; a run has four."""
PER_PATIENCE = 100
"""Objects for which a listing may take as long again as a request."""


class Tally:
    """Of one listing. Threads may count side by side.

    Args:
        url: What is listed.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._began = time.monotonic()
        self._told_at_s = LONG_S
        self._objects = self._folders = 0
        self._lock = threading.Lock()

    def took(self, *, objects: int = 0, folders: int = 0, depth: int = 0) -> None:
        """Counts what has come.

        Args:
            objects: So many more.
            folders: Likewise.
            depth: Of these, in folders within folders.

        Raises:
            RemoteError: It is more than anybody stores.
            StorageError: It comes too slowly.
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
        """What is raised where it is known to have no end."""
        return RemoteError(errno.EIO, f"its listing does not end: {self._objects:,} objects in {self._folders:,} "
                                      "folders so far", self._url, LIES)
