"""Small objects that will be read soon, fetched side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from distprof.storage.places import remote


@contextmanager
def ahead(paths: Iterable[Path]) -> Iterator[None]:
    """Small objects that are read in here are fetched side by side; of local files nothing is done."""
    elsewhere = [found for path in paths if (found := remote(path)) is not None]
    if not elsewhere:
        yield
        return
    from distprof.storage.fetching import begin, drop

    began = [one.url for one in elsewhere if one.entry is not None and begin(one.url, one.entry)]
    try:
        yield
    finally:
        for url in began:
            drop(url)
