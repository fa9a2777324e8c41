"""Whole objects: in memory if they are small, perhaps fetched ahead of their reader, otherwise in an unnamed file."""

from __future__ import annotations

import errno
import io
import os
import shutil
import tempfile
import threading
from concurrent.futures import Future
from pathlib import Path

from distprof.storage.backend import Entry
from distprof.storage.faults import RemoteError
from distprof.storage.kinds.schemes import backend_of
from distprof.storage.stream import requests

PIECE_BYTES = 1 << 20
HELD_BYTES = 16 << 20
"""Maximum size of an object that is held in memory as a whole."""
_COMING: dict[str, Future[bytes]] = {}
_LOCK = threading.Lock()


class Nameless(io.FileIO):
    """A file that is closed when it is no longer referenced: libraries that read it do not say when they are done."""

    def __del__(self) -> None:
        self.close()


def fetched(path: Path) -> io.BytesIO | Nameless:
    """Returns the content of an object as a file that disappears when it is closed."""
    if path.stat().st_size <= HELD_BYTES:
        return io.BytesIO(path.read_bytes())
    return copied(path)


def copied(path: Path) -> Nameless:
    """Copies an object to a file without a name, which disappears when it is closed or the process ends in any way."""
    size, free = path.stat().st_size, shutil.disk_usage(tempfile.gettempdir()).free
    if size > free:
        raise RemoteError(errno.ENOSPC, f"it has {size:,} bytes, too many for a copy in {tempfile.gettempdir()}",
                          str(path), "set TMPDIR to another folder for copies")
    with tempfile.TemporaryFile() as copy:
        with path.open("rb", buffering=0) as file:
            while piece := file.read(PIECE_BYTES):
                copy.write(piece)
        copy.flush()
        copy.seek(0)
        return Nameless(os.dup(copy.fileno()), "rb")


def begin(url: str, entry: Entry) -> bool:
    """Begins to fetch an object that will be read; False if it is too large for that, or already being fetched."""
    if not entry.size or entry.size > HELD_BYTES:
        return False
    with _LOCK:
        if url in _COMING:
            return False
        _COMING[url] = requests().submit(backend_of(url).whole, url, entry)
    return True


def taken(url: str) -> bytes | None:
    """Returns once what was fetched ahead for a URL; None if nothing was."""
    with _LOCK:
        coming = _COMING.pop(url, None) if _COMING else None
    return None if coming is None else coming.result()


def drop(url: str) -> None:
    """Drops what was fetched ahead for a URL, if it was not used."""
    with _LOCK:
        coming = _COMING.pop(url, None)
    if coming is not None:
        coming.cancel()
