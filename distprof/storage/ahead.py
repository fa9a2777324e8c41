"""Small objects that will be read soon, fetched side by side."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

from distprof.storage.places import remote

HELD_BYTES = 16 << 20
"""A larger object is not held in memory as a whole."""
_COMING: dict[str, Future[bytes]] = {}
_LOCK = threading.Lock()


@contextmanager
def ahead(paths: Iterable[Path]) -> Iterator[None]:
    """Small objects that are read in here are fetched side by side; of local files nothing is done."""
    began = [url for path in paths if (url := _begin(path)) is not None]
    try:
        yield
    finally:
        for url in began:
            with _LOCK:
                coming = _COMING.pop(url, None)
            if coming is not None:
                coming.cancel()


def _begin(path: Path) -> str | None:
    elsewhere = remote(path)
    entry = None if elsewhere is None else elsewhere.entry
    if elsewhere is None or entry is None or not entry.size or entry.size > HELD_BYTES:
        return None
    from distprof.storage.backend import backend_of
    from distprof.storage.stream import requests

    url = elsewhere.url
    with _LOCK:
        if url in _COMING:
            return None
        _COMING[url] = requests().submit(backend_of(url).whole, url, entry)
    return url


def taken(url: str) -> bytes | None:
    """What was fetched of a URL ahead, once; None where it was not."""
    with _LOCK:
        coming = _COMING.pop(url, None) if _COMING else None
    return None if coming is None else coming.result()
