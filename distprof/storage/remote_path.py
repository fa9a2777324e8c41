"""Paths whose content is fetched when they are opened. Lookups use a listing that is made once."""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
from collections.abc import Iterator, Mapping
from fnmatch import translate
from functools import cache
from pathlib import PosixPath, PurePosixPath
from re import Pattern
from re import compile as pattern_of
from typing import IO, Any, NoReturn

from distprof.storage.backend import Entry
from distprof.storage.credentials import exported, is_url, kept, remember
from distprof.storage.faults import RemoteError
from distprof.storage.fetching import Nameless, copied, taken
from distprof.storage.kinds.schemes import backend_of
from distprof.storage.listing import FEW, LISTINGS, Listing
from distprof.storage.stream import RemoteFile

BUFFER_BYTES = 1 << 16


class RemotePath(PosixPath):
    """`s3://bucket/run` and everything below: read like a local path, never written.

    Its parts are `s3:`, `bucket`, `run`. It is pickled with what is known of the object, or of the objects of a folder
    if they are few, so that other processes and hosts need not list them again.
    """

    def __new__(cls, *parts: Any, **_: object) -> RemotePath:
        """Creates it like a pure path, because creating a `PosixPath` fails on Windows."""
        return PurePosixPath.__new__(cls, *map(_without_secrets, parts))

    if sys.version_info >= (3, 12):
        def __init__(self, *parts: Any) -> None:
            super().__init__(*map(_without_secrets, parts))

    @classmethod
    def given(cls, url: str) -> RemotePath:
        """Returns the path of a URL given by a user: everything below it is listed at once, when first needed.

        Raises:
            UsageError: Such URLs cannot be read.
        """
        found = cls(url)
        backend_of(found.url)
        LISTINGS.forget(found.url)  # a notebook may open the same run again after it has grown
        LISTINGS.add(Listing(found.url))
        return found

    @property
    def url(self) -> str:
        """The URL without secrets, which are in `credentials`."""
        scheme, *rest = self.parts or ("",)
        return f"{scheme}//{'/'.join(rest)}" if is_url(f"{scheme}//") else "/".join(self.parts)

    @property
    def entry(self) -> Entry | None:
        """The object; None for a folder or nothing."""
        listing, inside = LISTINGS.of(self.url)
        return listing.entry(inside)

    def __str__(self) -> str:
        return self.url

    def __repr__(self) -> str:
        return f"RemotePath({str(self)!r})"

    def __reduce__(self) -> Any:
        listing, inside = LISTINGS.of(self.url)
        below = listing.below(inside)
        return _unpickled, (self.url, below if len(below) <= FEW else None, listing.stamp, exported(self.url))

    def __fspath__(self) -> str:
        """Returns a local copy, for code that takes only local paths; it ends with the process. Not for folders."""
        entry = self.entry
        return str(self) if entry is None else f"/proc/self/fd/{_copy(self.url, entry).fileno()}"

    def exists(self, **_: object) -> bool:
        return self.is_file() or self.is_dir()

    def is_file(self, **_: object) -> bool:
        return self.entry is not None

    def is_dir(self, **_: object) -> bool:
        listing, inside = LISTINGS.of(self.url)
        return listing.children(inside) is not None

    def is_symlink(self) -> bool:
        return False

    def is_mount(self) -> bool:
        return False

    def is_absolute(self) -> bool:
        return True

    def absolute(self) -> RemotePath:
        return self

    def resolve(self, strict: bool = False) -> RemotePath:  # noqa: FBT001 (as pathlib has it)
        return self

    def expanduser(self) -> RemotePath:
        return self

    def relative_to(self, *other: Any, **_: object) -> Any:
        """Returns the path relative to another one, as a pure path."""
        before = type(self)(*other).parts
        if self.parts[:len(before)] != before:
            raise ValueError(f"{self} is not below {type(self)(*other)}")
        return PurePosixPath(*self.parts[len(before):])

    def stat(self, **_: object) -> os.stat_result:
        """Returns size and time; what the listing does not contain is requested."""
        entry = self.entry
        if entry is None:
            if not self.is_dir():
                self._fail(errno.ENOENT)
            return os.stat_result((stat.S_IFDIR | 0o555, 0, 0, 1, 0, 0, 0, 0, 0, 0))
        size = self._known().size or 0
        seconds = entry.modified_ns // 1_000_000_000
        return os.stat_result((stat.S_IFREG | 0o444, 0, 0, 1, 0, 0, size, seconds, seconds, seconds,
                               seconds, seconds, seconds, *[entry.modified_ns] * 3))

    def lstat(self) -> os.stat_result:
        return self.stat()

    def iterdir(self) -> Iterator[RemotePath]:  # type: ignore[override]
        listing, inside = LISTINGS.of(self.url)
        names = listing.children(inside)
        if names is None:
            self._fail(errno.ENOTDIR if self.is_file() else errno.ENOENT)
        yield from (self / name for name in names)

    def glob(self, pattern: str, **_: object) -> Iterator[RemotePath]:  # type: ignore[override]
        first, _slash, rest = pattern.partition("/")
        fits = _name(first)
        for child in self.iterdir() if self.is_dir() else ():
            if fits.fullmatch(child.name):
                yield from child.glob(rest) if rest else (child,)

    def walk(self, *_: object, **__: object) -> Any:
        """Yields folders from here down: path, names of subfolders (which the caller may remove), names of files."""
        children = list(self.iterdir()) if self.is_dir() else []
        folders = [child.name for child in children if child.is_dir()]
        yield self, folders, [child.name for child in children if child.is_file()]
        for name in folders:
            yield from (self / name).walk()

    def open(self, mode: str = "r", buffering: int = -1, encoding: str | None = None,  # type: ignore[override]
             errors: str | None = None, newline: str | None = None) -> IO[Any]:
        """Opens the object as a stream: a few blocks are in memory, nothing is stored on disk."""
        if set(mode) - set("rbt"):
            self._fail(errno.EROFS)
        raw: Any = RemoteFile(self.url, backend_of(self.url), self._known())
        if buffering == 0 and "b" in mode:
            return raw  # type: ignore[no-any-return]
        buffered = io.BufferedReader(raw, BUFFER_BYTES)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding or "utf-8", errors, newline)

    def read_bytes(self) -> bytes:
        if (content := taken(self.url)) is not None:
            return content
        with RemoteFile(self.url, backend_of(self.url), self._known()) as file:
            return file.readall()

    def mkdir(self, *_: object, **__: object) -> None:
        """Does nothing: folders are created by writing to them."""

    def unlink(self, *_: object, **__: object) -> NoReturn:
        self._fail(errno.EROFS)

    rename = replace = rmdir = touch = chmod = symlink_to = write_bytes = write_text = unlink

    def _known(self) -> Entry:
        entry = self.entry
        if entry is None:
            self._fail(errno.EISDIR if self.is_dir() else errno.ENOENT)
        return self._asked() if entry.size is None else entry

    def _asked(self) -> Entry:
        """Requests what the listing does not contain, and stores it there."""
        listing, inside = LISTINGS.of(self.url)
        found = listing.entries[inside] = backend_of(self.url).info(self.url)
        if found.size is None:
            raise RemoteError(errno.EIO, "its length is unknown", str(self), "the server must send "
                                                                                       "Content-Length")
        return found

    def _fail(self, number: int) -> NoReturn:
        raise OSError(number, os.strerror(number), str(self))


def _without_secrets(part: object) -> Any:
    return kept(part) if isinstance(part, str) and is_url(part) else part


def _unpickled(url: str, below: dict[str, Entry] | None, stamp: str, secrets: Mapping[str, str]) -> RemotePath:
    remember(secrets)
    LISTINGS.add(Listing(url, below, stamp))  # a worker of a cluster may have an older listing
    return RemotePath(url)


@cache
def _name(wildcards: str) -> Pattern[str]:
    return pattern_of(translate(wildcards))


@cache
def _copy(url: str, _: Entry) -> Nameless:
    return copied(RemotePath(url))
