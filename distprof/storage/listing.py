"""What lies at a URL: listed once, then asked without requests."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice
from uuid import uuid4

from distprof.storage.backend import Entry
from distprof.storage.kinds.schemes import backend_of

FEW = 64
"""Objects of a folder that go along with its path to other processes."""


class Listing:
    """All objects at and below a URL, as they were when it was first asked.

    Args:
        url: Without a slash at its end.
        entries: Where they are known; else they are listed when they are asked for.
        stamp: That of the listing of another process of which this one is a copy.
    """

    def __init__(self, url: str, entries: dict[str, Entry] | None = None, stamp: str = "") -> None:
        self.url = url
        self.stamp = stamp or uuid4().hex
        self._entries = entries
        self._children: dict[str, set[str]] = {}
        self._names: list[str] = []
        """Sorted, once that was needed."""
        self._lock = threading.Lock()
        if entries is not None:
            self._note_folders(entries)

    @property
    def entries(self) -> dict[str, Entry]:
        """By what follows the URL; "" where it is an object itself."""
        with self._lock:
            if self._entries is None:
                found = backend_of(self.url).entries(self.url)
                self._note_folders(found)
                self._entries = found
            return self._entries

    def entry(self, inside: str) -> Entry | None:
        """The object at a path; None for folders and for nothing."""
        return self.entries.get(inside)

    def children(self, inside: str) -> list[str] | None:
        """Names in a folder, sorted; None where there is no folder."""
        self.entries  # noqa: B018 (lists)
        found = self._children.get(inside)
        return None if found is None else sorted(found)

    def below(self, inside: str) -> dict[str, Entry]:
        """The objects of a folder and of those in it, by what follows it; of a file itself."""
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
    """Those of this process, by their URLs."""

    def __init__(self) -> None:
        self._known: dict[str, Listing] = {}
        self._lock = threading.Lock()

    def of(self, url: str) -> tuple[Listing, str]:
        """The listing that shows a URL, and what follows there; one of its own where none does."""
        with self._lock:
            for above in _above(url):
                if (found := self._known.get(above)) is not None:
                    return found, url.removeprefix(above).removeprefix("/")
            found = self._known[url] = Listing(url)
            return found, ""

    def add(self, listing: Listing) -> None:
        """Has it answer for all below its URL, unless it is that of which there is a copy."""
        with self._lock:
            known = self._known.get(listing.url)
            if known is None or known.stamp != listing.stamp:
                self._known[listing.url] = listing

    def forget(self, url: str) -> None:
        """After something was written there: what shows it is listed anew."""
        with self._lock:
            for known in [known for known in self._known
                          if known == url or known.startswith(f"{url}/") or url.startswith(f"{known}/")]:
                self._known[known] = Listing(known)

    def forget_all(self) -> None:
        """Every place is listed anew."""
        with self._lock:
            self._known.clear()


def _above(url: str) -> Iterator[str]:
    """The URL, and those of the folders around it."""
    yield url
    scheme, _, rest = url.partition("://")
    while "/" in rest:
        rest = rest.rpartition("/")[0]
        yield f"{scheme}://{rest}"


LISTINGS = Listings()
