"""Counts what a listing brings, and ends one that has no end: a server may say that there is always more."""

from __future__ import annotations

import errno
import threading
import time

from distprof.errors import StorageError
from distprof.storage.faults import LIES, NETWORK, RemoteError
from distprof.storage.retrying import LONG_S, allowed_s
from distprof.terminal import say

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
