"""A storage as fsspec knows it: what is there, and bytes of it. Each request is tried again where that may help."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from distprof.errors import UsageError
from distprof.storage.faults import CHANGED, NUMBERS, Kind, RemoteError
from distprof.storage.retrying import persistently
from distprof.storage.writable import Writable

Result = TypeVar("Result")
EXTRAS = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "ssh": "sshfs", "sftp": "sshfs",
          "abfs": "adlfs", "az": "adlfs"}
"""Scheme -> the package that reads it."""
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    # tries are ours alone: those of botocore and s3fs would multiply with them, and say nothing
    "s3": {"config_kwargs": {"retries": {"mode": "standard", "total_max_attempts": 1}, "max_pool_connections": 64}},
}
_SETTING_UP = threading.Lock()


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
        self.filesystem = filesystem

    def key(self, url: str) -> str:
        """What fsspec calls the object of a URL."""
        found: str = self.filesystem._strip_protocol(url)
        return found.rstrip("/")

    def entries(self, url: str) -> dict[str, Entry]:
        """All objects at and below a URL, by what follows it; "" is the object itself. Nothing where nothing is."""
        root = self.key(url)

        def find() -> dict[str, Any]:
            try:
                self.filesystem.invalidate_cache()
                if self._is_file(root):
                    return {root: self.filesystem.info(root)}
                found: dict[str, Any] = self.filesystem.find(root, detail=True)
            except (FileNotFoundError, NotADirectoryError) as error:
                if "bucket" in str(error).lower():
                    raise
                return {}
            return found

        found = persistently(url, find)
        return dict(self._named(root, found))

    def _is_file(self, root: str) -> bool:
        """True where that has to be asked first: listing a page of the web means reading it."""
        return False

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
            return entry_of(self.filesystem.info(self.key(url)))

        return persistently(url, ask)

    def read(self, url: str, start: int, end: int, entry: Entry) -> bytes:
        """Bytes of an object, all of them or an error.

        Raises:
            RemoteError: It is not there, not readable, or another one than the entry says.
            StorageError: The storage does not answer, or refuses the keys.
        """
        def get() -> bytes:
            content: bytes = self._get(self.key(url), start, end, entry)
            if len(content) != end - start:
                raise ConnectionError(f"{len(content)} of {end - start} bytes came")
            return content

        return persistently(url, get)

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
            raise RemoteError(NUMBERS[Kind.REPLACED], "it was replaced while it was read", url, CHANGED)

    def _get(self, key: str, start: int, end: int, entry: Entry) -> Any:
        return self.filesystem.cat_file(key, start=start, end=end)


def entry_of(about: Mapping[str, Any]) -> Entry:
    """What fsspec says of an object, whatever it is called there."""
    modified = next((about[name] for name in ("LastModified", "mtime", "updated", "last_modified", "created")
                     if about.get(name) is not None), None)
    tag = next((str(about[name]) for name in ("ETag", "etag", "generation") if about.get(name)), "")
    size = about.get("size")
    modified_ns = _ns(modified)
    return Entry(size=None if size is None else int(size), modified_ns=modified_ns, tag=tag or str(modified_ns or ""))


def _ns(time: Any) -> int:
    if isinstance(time, str):
        try:
            time = datetime.fromisoformat(time)
        except ValueError:
            return 0
    seconds = time.timestamp() if isinstance(time, datetime) else time
    return round(seconds * 1e9) if isinstance(seconds, int | float) else 0


def backend_of(url: str) -> Backend:
    """The storage of a URL.

    Raises:
        UsageError: No such URLs can be read, or not with what is installed.
    """
    scheme, _, rest = url.partition("://")
    with _SETTING_UP:
        return _backend(scheme, rest.partition("/")[0] if scheme not in ("s3", "s3a", "gs", "gcs") else "")


@cache
def _backend(scheme: str, host: str) -> Backend:
    from fsspec.core import url_to_fs  # takes a while, and local runs need none of it

    url = f"{scheme}://{host}/" if host else f"{scheme}://"
    options = dict(OPTIONS.get("s3" if scheme == "s3a" else scheme, {}))
    try:
        filesystem, _ = url_to_fs(url, use_listings_cache=False, skip_instance_cache=True, **options)
    except ImportError as error:
        package = EXTRAS.get(scheme)
        raise UsageError(f"expected a package that reads {scheme}:// URLs, found none: {error}",
                         hint=f"pip install {'distprof[s3]' if package == 's3fs' else package}" if package else
                         "docs/object-storage.md lists packages") from error
    except ValueError as error:
        raise UsageError(f"expected a URL like s3://bucket/run, found {scheme}://: {error}",
                         hint="docs/object-storage.md lists what can be read") from error
    return _kind_of(scheme)(scheme, filesystem)


def forget_clients() -> None:
    """What was set in the environment meanwhile holds for the next client."""
    _backend.cache_clear()


def _kind_of(scheme: str) -> Callable[[str, Any], Backend]:
    if scheme in ("s3", "s3a"):
        from distprof.storage.s3 import S3

        return S3
    if scheme in ("http", "https"):
        from distprof.storage.web import Web

        return Web
    return Backend
