"""A storage accessed through fsspec: its listing and its bytes. Requests are repeated if that may help."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from distprof.storage.faults import CHANGED, NUMBERS, Kind, RemoteError
from distprof.storage.retrying import Tally, persistently
from distprof.storage.writing.writable import Writable

Result = TypeVar("Result")
LISTING_BYTES = 8 << 20
"""Size that a listing made in one request is assumed to have, for its time limit."""
MOST_BYTES = 1 << 46
"""No storage has larger objects: a server that reports more does not know the length."""
MOST_S = 1 << 33
"""Later times (in seconds since the epoch) are invalid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An object, as shown in a listing."""

    size: int | None
    """Bytes; None if the listing does not show it."""
    modified_ns: int
    """ns since the epoch; 0 if the listing does not show it."""
    tag: str
    """Changes when the object is replaced; '' if that cannot be detected."""


class Backend(Writable):
    """All objects of a storage that one client reaches.

    Args:
        scheme: The scheme of its URLs.
        filesystem: The filesystem of fsspec.
    """

    def __init__(self, scheme: str, filesystem: Any) -> None:
        self.scheme = scheme
        self._filesystem = filesystem

    @property
    def filesystem(self) -> Any:
        """The filesystem of fsspec."""
        return self._filesystem

    def key(self, url: str) -> str:
        """Returns fsspec's name of the object at a URL."""
        found: str = self.filesystem._strip_protocol(url)
        return found.rstrip("/")

    def entries(self, url: str) -> dict[str, Entry]:
        """Returns all objects at and below a URL by what follows it ("" for the object itself); empty if none."""
        root = self.key(url)

        def find() -> Mapping[str, Any]:
            try:
                self.filesystem.invalidate_cache()
                return self._found(root)
            except (FileNotFoundError, NotADirectoryError) as error:
                if "bucket" in str(error).lower():
                    raise
                return {}

        found = persistently(url, find, num_bytes=LISTING_BYTES)
        Tally(url).took(objects=len(found))
        return dict(self._named(root, found))

    def _found(self, root: str) -> Mapping[str, Any]:
        """Returns what fsspec reports about all objects at and below a key, by key."""
        found: Mapping[str, Any] = self.filesystem.find(root, detail=True)
        return found

    def _named(self, root: str, found: Mapping[str, Any]) -> Iterator[tuple[str, Entry]]:
        for name, about in found.items():
            inside = name.removeprefix(root).removeprefix("/")
            parts = inside.split("/") if inside else []
            # markers of folders, and keys that are not paths, cannot be meant as files of a run
            if about.get("type") == "directory" or any(part in ("", ".", "..") for part in parts):
                continue
            yield inside, entry_of(about)

    def info(self, url: str) -> Entry:
        """Returns an object as it is at this moment.

        Raises:
            RemoteError: It does not exist, or cannot be asked for.
        """
        def ask() -> Entry:
            self.filesystem.invalidate_cache()
            return entry_of(self._info(self.key(url)))

        return persistently(url, ask)

    def _info(self, key: str) -> Mapping[str, Any]:
        """Returns what fsspec reports about an object."""
        found: Mapping[str, Any] = self.filesystem.info(key)
        return found

    def read(self, url: str, start: int, end: int, entry: Entry) -> bytes:
        """Returns bytes of an object, either all that were requested or an error.

        Raises:
            RemoteError: It does not exist, cannot be read, or is not the one of the entry any more.
            StorageError: The storage does not answer, or refuses the credentials.
        """
        def get() -> bytes:
            content: bytes = self._get(self.key(url), start, end, entry)
            if len(content) != end - start:
                raise ConnectionError(f"only {len(content)} of {end - start} bytes arrived")
            return content

        return persistently(url, get, num_bytes=end - start)

    def whole(self, url: str, entry: Entry) -> bytes:
        """Returns all bytes of a small object; see `read`."""
        content = self.read(url, 0, entry.size or 0, entry)
        self.check(url, entry)
        return content

    def holds(self, file: Path, entry: Entry) -> bool:
        """Returns whether an object that `put_file` wrote has the content of a file; False if that cannot be told."""
        return False

    def check(self, url: str, entry: Entry) -> None:
        """Checks that an object is still the one of the entry, for storages whose reads do not check that.

        Raises:
            RemoteError: It was replaced or removed.
        """
        now = self.info(url)
        if (now.tag, now.size) != (entry.tag, entry.size if entry.size is not None else now.size):
            raise RemoteError(NUMBERS[Kind.REPLACED], "it was replaced while being read", url, CHANGED)

    def _get(self, key: str, start: int, end: int, entry: Entry) -> Any:
        return self.filesystem.cat_file(key, start=start, end=end)


def entry_of(about: Mapping[str, Any]) -> Entry:
    """Converts what fsspec reports about an object, whose names depend on the storage."""
    modified = next((about[name] for name in ("LastModified", "mtime", "updated", "last_modified", "created")
                     if about.get(name) is not None), None)
    tag = next((str(about[name]) for name in ("ETag", "etag", "generation") if about.get(name)), "")
    size, modified_ns = about.get("size"), _ns(modified)
    size = None if size is None or not 0 <= int(size) <= MOST_BYTES else int(size)
    return Entry(size=size, modified_ns=modified_ns, tag=tag or str(modified_ns or ""))


def _ns(time: object) -> int:
    if isinstance(time, str):
        try:
            time = datetime.fromisoformat(time)
        except ValueError:
            return 0
    seconds = time.timestamp() if isinstance(time, datetime) else time
    return round(seconds * 1e9) if isinstance(seconds, int | float) and 0 <= seconds < MOST_S else 0


