"""Lets one process at a time write to a place, by an object that exists there while it works."""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from types import TracebackType

from distprof.errors import OutputError
from distprof.storage.faults import RemoteError
from distprof.storage.kinds.schemes import backend_of
from distprof.storage.writing.uploading import told_of

NAME = ".distprof-writing"
STALE_S = 1800.0
"""Age in seconds at which a claim that was not renewed counts as that of a dead process; S3 tolerates clocks that
differ by 900 s."""
RENEWED_S = 60.0


class Claim:
    """The claim of a folder, from entering to leaving the context.

    Args:
        url: The URL of the folder.
        shown: Its name in messages.

    Raises:
        OutputError: On entering or checking: somebody else writes there, or writing is not permitted.
    """

    def __init__(self, url: str, shown: str) -> None:
        self._url, self._shown = f"{url}/{NAME}", shown
        self._owner = secrets.token_hex(8)
        self._done = threading.Event()
        self._renewing = threading.Thread(target=self._renew, daemon=True)

    def __enter__(self) -> Claim:
        with told_of(self._shown):
            if not self._put(only_new=True):
                self._take_over()
        self._renewing.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._done.set()
        try:
            if self._found().get("owner") == self._owner:
                backend_of(self._url).remove([self._url])
        except Exception:  # the claim expires anyway, and there may already be an error
            if error is None:
                raise

    def check(self) -> None:
        """Raises OutputError if another process has taken over, because this one was suspended for long."""
        if self._found().get("owner") != self._owner:
            raise self._taken()

    def _put(self, *, only_new: bool) -> bool:
        content = {"owner": self._owner, "host": socket.gethostname(), "process": os.getpid(), "time": time.time()}
        return backend_of(self._url).put(self._url, json.dumps(content).encode(), only_new=only_new)

    def _take_over(self) -> None:
        found = self._found()
        if found.get("owner") == self._owner:  # our request succeeded, but its answer was lost
            return
        if found and time.time() - self._modified_s() < STALE_S:
            raise self._taken(found)
        backend_of(self._url).remove([self._url])
        if not self._put(only_new=True):
            raise self._taken()

    def _taken(self, found: dict[str, object] | None = None) -> OutputError:
        other = found if found is not None else self._found()
        who = f"process {other['process']} on {other['host']}" if {"process", "host"} <= other.keys() else "another one"
        return OutputError(f"{who} is already writing {self._shown}",
                           hint="wait for it, or choose another --out; if it was killed, the place is free again "
                                f"after {STALE_S / 60:.0f} min")

    def _found(self) -> dict[str, object]:
        """Returns the current content of the claim; empty if there is none."""
        backend = backend_of(self._url)
        try:
            found = json.loads(backend.whole(self._url, backend.info(self._url)))
        except (RemoteError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _modified_s(self) -> float:
        try:
            return backend_of(self._url).info(self._url).modified_ns / 1e9
        except RemoteError:
            return 0.0

    def _renew(self) -> None:
        while not self._done.wait(RENEWED_S):
            try:
                self.check()
                self._put(only_new=False)
            except Exception:  # noqa: BLE001 (users of the claim check it)
                continue
