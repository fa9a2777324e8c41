"""A storage as fsspec knows it: what is there, and bytes of it. Each request is tried again where that may help."""

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
"""That a listing in one request is taken to be."""
MOST_BYTES = 1 << 46
"""No storage takes a larger object: whoever says so does not tell its length."""
MOST_S = 1 << 33
"""A time later than that is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An object, as a listing shows it."""

    size: int | None
    """Bytes; None where the listing does not tell."""
    modified_ns: int
    """0 where it does not tell."""
    tag: str
    """Another one where the object was replaced; empty where that cannot be told."""


class Backend(Writable):
    """All objects of a storage that one client reaches.

    Args:
        scheme: Of its URLs.
        filesystem: Of fsspec.
    """

    def __init__(self, scheme: str, filesystem: Any) -> None:
        self.scheme = scheme
        self._filesystem = filesystem

    @property
    def filesystem(self) -> Any:
        """Of fsspec."""
        return self._filesystem

    def key(self, url: str) -> str:
        """What fsspec calls the object of a URL."""
        found: str = self.filesystem._strip_protocol(url)
        return found.rstrip("/")

    def entries(self, url: str) -> dict[str, Entry]:
        """All objects at and below a URL, by what follows it; "" is the object itself. Nothing where nothing is."""
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
        """What fsspec says of all objects at and below a key, by their keys."""
        found: Mapping[str, Any] = self.filesystem.find(root, detail=True)
        return found

    def _named(self, root: str, found: Mapping[str, Any]) -> Iterator[tuple[str, Entry]]:
        for name, about in found.items():
            inside = name.removeprefix(root).removeprefix("/")
            parts = inside.split("/") if inside else []
            # markers of folders, and keys that are no paths: nobody can have meant them as files of a run
            if about.get("type") == "directory" or any(part in ("", ".", "..") for part in parts):
                continue
            yield inside, entry_of(about)

    def info(self, url: str) -> Entry:
        """An object as it is now.

        Raises:
            RemoteError: It is not there, or cannot be asked for.
        """
        def ask() -> Entry:
            self.filesystem.invalidate_cache()
            return entry_of(self._info(self.key(url)))

        return persistently(url, ask)

    def _info(self, key: str) -> Mapping[str, Any]:
        """What fsspec says of an object."""
        found: Mapping[str, Any] = self.filesystem.info(key)
        return found

    def read(self, url: str, start: int, end: int, entry: Entry) -> bytes:
        """Bytes of an object, all of them or an error.

        Raises:
            RemoteError: It is not there, not readable, or another one than the entry says.
            StorageError: The storage does not answer, or refuses the keys.
        """
        def get() -> bytes:
            content: bytes = self._get(self.key(url), start, end, entry)
            if len(content) != end - start:
                raise ConnectionError(f"only {len(content)} of {end - start} bytes arrived")
            return content

        return persistently(url, get, num_bytes=end - start)

    def whole(self, url: str, entry: Entry) -> bytes:
        """All bytes of a small object; see `read`."""
        content = self.read(url, 0, entry.size or 0, entry)
        self.check(url, entry)
        return content

    def holds(self, file: Path, entry: Entry) -> bool:
        """Whether an object that `put_file` wrote is that of a file; False where that cannot be told."""
        return False

    def check(self, url: str, entry: Entry) -> None:
        """Asks whether an object is still the one of the entry, where reading itself does not tell.

        Raises:
            RemoteError: It was replaced or removed.
        """
        now = self.info(url)
        if (now.tag, now.size) != (entry.tag, entry.size if entry.size is not None else now.size):
            raise RemoteError(NUMBERS[Kind.REPLACED], "it was replaced while being read", url, CHANGED)

    def _get(self, key: str, start: int, end: int, entry: Entry) -> Any:
        return self.filesystem.cat_file(key, start=start, end=end)


def entry_of(about: Mapping[str, Any]) -> Entry:
    """What fsspec says of an object, whatever it is called there."""
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


