"""Reads an object sequentially, a few blocks ahead; after a broken connection, it continues at the next byte."""

from __future__ import annotations

import io
from collections import deque
from concurrent.futures import Executor, Future
from functools import cache
from typing import Any

from distprof.storage.backend import Backend, Entry
from distprof.system import after_fork
from distprof.threads import thread_pool

FIRST_BYTES, MOST_BYTES = 1 << 18, 1 << 22
"""Block sizes: the first block is small, since of many files only the start is read."""
AHEAD = 2
"""Number of blocks that are requested while another one is read."""
REQUESTS = 32
"""Maximum number of parallel requests for all files of this process."""


class RemoteFile(io.RawIOBase):
    """An object as a file. At most `AHEAD` + 1 blocks are in memory.

    Args:
        url: The URL of the object.
        backend: The storage of the URL.
        entry: The object as it was listed; reading another one is an error.
    """

    def __init__(self, url: str, backend: Backend, entry: Entry) -> None:
        super().__init__()
        self._url, self._entry, self._backend = url, entry, backend
        self._size = entry.size or 0
        self._at = 0
        self._held = memoryview(b"")
        self._coming: deque[Future[bytes]] = deque()
        self._asked = 0
        """The first byte that has not been requested."""
        self._block = FIRST_BYTES
        self._checked = False

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        place = max(start + offset, 0)
        passed = place - self._at
        if 0 <= passed <= len(self._held):
            self._held = self._held[passed:]
        else:
            self._drop()
            self._asked = place
        self._at = place
        return place

    def readinto(self, room: Any, /) -> int:
        if not self._held:
            self._held = memoryview(self._next())
        count = min(len(room), len(self._held))
        room[:count] = self._held[:count]
        self._held = self._held[count:]
        self._at += count
        return count

    def readall(self) -> bytes:
        """Returns the rest, read by large requests."""
        rest = [bytes(self._held)]
        self._held = memoryview(b"")
        self._block = MOST_BYTES
        while block := self._next():
            rest.append(block)
        content = b"".join(rest)
        self._at += len(content)
        return content

    def close(self) -> None:
        self._drop()
        super().close()

    def _next(self) -> bytes:
        """Returns the next block; empty at the end."""
        if not self._coming:
            self._ask()
        if not self._coming:
            if not self._checked and self._size:
                self._checked = True
                self._backend.check(self._url, self._entry)
            return b""
        coming = self._coming.popleft()
        grown = self._block > FIRST_BYTES
        while grown and len(self._coming) < AHEAD and self._asked < self._size:
            self._ask()
        self._block = min(self._block * 4, MOST_BYTES)
        return coming.result()

    def _ask(self) -> None:
        start, end = self._asked, min(self._asked + self._block, self._size)
        if start < end:
            self._coming.append(requests().submit(self._backend.read, self._url, start, end, self._entry))
            self._asked = end

    def _drop(self) -> None:
        for coming in self._coming:
            coming.cancel()
        self._coming.clear()
        self._held = memoryview(b"")


@cache
def requests() -> Executor:
    """Returns the executor for all requests of this process, none of which waits for another."""
    return thread_pool(REQUESTS)


after_fork(requests.cache_clear)  # a forked child does not have its threads
