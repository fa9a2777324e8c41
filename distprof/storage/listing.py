"""The contents of a URL: listed once, then looked up without requests."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice
from uuid import uuid4

from distprof.storage.backend import Entry
from distprof.storage.kinds.schemes import backend_of

FEW = 64
"""Maximum number of objects of a folder that are sent to other processes together with its path."""


class Listing:
    """All objects at and below a URL, as they were when it was first listed.

    Args:
        url: URL without a slash at its end.
        entries: The objects if they are known; otherwise they are listed when needed.
        stamp: Stamp of another process's listing, of which this one is a copy.
    """

    def __init__(self, url: str, entries: dict[str, Entry] | None = None, stamp: str = "") -> None:
        self.url = url
        self.stamp = stamp or uuid4().hex
        self._entries = entries
        self._children: dict[str, set[str]] = {}
        self._names: list[str] = []
        """Sorted names; empty until they are needed."""
        self._lock = threading.Lock()
        if entries is not None:
            self._note_folders(entries)

    @property
    def entries(self) -> dict[str, Entry]:
        """Objects by what follows the URL; "" if it is an object itself."""
        with self._lock:
            if self._entries is None:
                found = backend_of(self.url).entries(self.url)
                self._note_folders(found)
                self._entries = found
            return self._entries

    def entry(self, inside: str) -> Entry | None:
        """Returns the object at a path; None for a folder or nothing."""
        return self.entries.get(inside)

    def children(self, inside: str) -> list[str] | None:
        """Returns the sorted names in a folder; None if there is no folder."""
        self.entries  # noqa: B018 (lists)
        found = self._children.get(inside)
        return None if found is None else sorted(found)

    def below(self, inside: str) -> dict[str, Entry]:
        """Returns the objects in a folder and its subfolders, keyed by what follows it; of a file, the file itself."""
        own = self.entry(inside)
        if own is not None:
            return {"": own}
        prefix = f"{inside}/" if inside else ""
        self._names = self._names or sorted(self.entries)
        first, found = bisect_left(self._names, prefix), dict[str, Entry]()
        for name in islice(self._names, first, None):
            if not name.startswith(prefix):
                break
            found[name.removeprefix(prefix)] = self.entries[name]
        return found

    def _note_folders(self, entries: dict[str, Entry]) -> None:
        for name in entries:
            while name:
                folder, _, own = name.rpartition("/")
                known = self._children.setdefault(folder, set())
                if own in known:
                    break
                known.add(own)
                name = folder


class Listings:
    """The listings of this process, by URL."""

    def __init__(self) -> None:
        self._known: dict[str, Listing] = {}
        self._lock = threading.Lock()

    def of(self, url: str) -> tuple[Listing, str]:
        """Returns the listing that contains a URL, creating it if needed, and the path of the URL in it."""
        with self._lock:
            for above in _above(url):
                if (found := self._known.get(above)) is not None:
                    return found, url.removeprefix(above).removeprefix("/")
            found = self._known[url] = Listing(url)
            return found, ""

    def add(self, listing: Listing) -> None:
        """Uses this listing for everything below its URL, unless it is a copy of the one in use."""
        with self._lock:
            known = self._known.get(listing.url)
            if known is None or known.stamp != listing.stamp:
                self._known[listing.url] = listing

    def forget(self, url: str) -> None:
        """Drops listings that contain a URL or are below it, after something was written there."""
        with self._lock:
            for known in [known for known in self._known
                          if known == url or known.startswith(f"{url}/") or url.startswith(f"{known}/")]:
                self._known[known] = Listing(known)

    def forget_all(self) -> None:
        """Drops all listings."""
        with self._lock:
            self._known.clear()


def _above(url: str) -> Iterator[str]:
    """Yields the URL and those of the folders around it."""
    yield url
    scheme, _, rest = url.partition("://")
    while "/" in rest:
        rest = rest.rpartition("/")[0]
        yield f"{scheme}://{rest}"


LISTINGS = Listings()
