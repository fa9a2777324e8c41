"""Has one process at a time write a place: it leaves an object there that says so, for as long as it works."""

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
"""A claim that was not renewed for so long is of a process that died; S3 takes clocks that differ by 900 s."""
RENEWED_S = 60.0


class Claim:
    """Of a folder, from entering to leaving.

    Args:
        url: Of the folder.
        shown: What to call it.

    Raises:
        OutputError: While entering or checking: somebody else writes there, or nothing may be written.
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
        except Exception:  # it ends by itself, and there may be an error already
            if error is None:
                raise

    def check(self) -> None:
        """Raises OutputError where another process has taken the place over: this one stood still for long."""
        if self._found().get("owner") != self._owner:
            raise self._taken()

    def _put(self, *, only_new: bool) -> bool:
        content = {"owner": self._owner, "host": socket.gethostname(), "process": os.getpid(), "time": time.time()}
        return backend_of(self._url).put(self._url, json.dumps(content).encode(), only_new=only_new)

    def _take_over(self) -> None:
        found = self._found()
        if found.get("owner") == self._owner:  # the answer was lost on its way, not the request
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
        """What the claim says now; nothing where there is none."""
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
            except Exception:  # noqa: BLE001 (whoever needs the claim checks it)
                continue
