"""Locates a trace, and opens its stored bytes."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from distprof.merge.scan.anonymous import Anonymiser
from distprof.merge.scan.gunzip import MAGIC, Gunzip, Readable

ZIP = b"PK\x03\x04"
"""First bytes of a zip archive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFile:
    """Location of a trace: a file, or a member of a zip archive, or of a tar archive, which may be gzipped."""

    path: Path
    member: str | None = None
    """Name in the archive at `path`; None if the trace is not in an archive."""
    offset: int = 0
    """Where the member begins in the decompressed archive, in bytes."""
    size: int | None = None
    """Bytes of the member as stored in the archive."""
    label: str = ""
    """Its name in messages, if not its file name."""
    in_ns: bool = False
    """True if its times are nanoseconds, although the format requires microseconds."""
    anonymiser: Anonymiser | None = None
    """Replaces names in its text; None to leave it as it is."""

    @property
    def is_changed(self) -> bool:
        """True if its text is not read as it is stored."""
        return self.in_ns or self.anonymiser is not None

    @property
    def name(self) -> str:
        """Its name in messages."""
        own = self.path.name if self.member is None else f"{self.path.name}: {self.member}"
        return printable(self.label or own)

    @property
    def num_bytes(self) -> int:
        """Its length in bytes as it is stored, compressed or not."""
        return self.path.stat().st_size if self.size is None else self.size

    def open(self, stack: ExitStack) -> Readable:
        """Opens its stored bytes; what has to be closed goes on the stack."""
        if self.member is None or self.size is None:
            return stack.enter_context(self.path.open("rb", buffering=0))
        if is_zip(self.path):
            return Unzipped(stack.enter_context(zipfile.ZipFile(self.path)), self.member)
        if is_gzip(self.path):
            archive = Pieces(Gunzip(lambda own: own.enter_context(self.path.open("rb"))))
            archive.skip(self.offset)
            return Part(archive, self.size)
        file = stack.enter_context(self.path.open("rb"))
        file.seek(self.offset)
        return Part(file, self.size)


def printable(name: str) -> str:
    """Returns the name of a file or of a member as text that can be written as UTF-8; other bytes become U+FFFD."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


class Pieces:
    """A file made of pieces of bytes."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._held = memoryview(b"")

    def read(self, size: int, /) -> bytes:
        """Returns at most `size` bytes, as many as the current piece has; none at the end."""
        while not self._held:
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._held = memoryview(piece)
        out, self._held = self._held[:size], self._held[size:]
        return bytes(out)

    def skip(self, count: int) -> None:
        """Skips `count` bytes, or to the end."""
        while count > 0 and (out := self.read(count)):
            count -= len(out)


class Part:
    """The next `size` bytes of a file; fewer if it ends before."""

    def __init__(self, raw: Readable, size: int) -> None:
        self._raw = raw
        self._size = size
        self.given = 0
        self._ended = False

    @property
    def missing(self) -> int:
        """Number of bytes that turned out to be missing."""
        return self._size - self.given if self._ended else 0

    def read(self, size: int, /) -> bytes:
        """Returns at most `size` bytes; none at the end."""
        out = self._raw.read(min(size, self._size - self.given))
        self.given += len(out)
        self._ended |= not out
        return out


class Unzipped:
    """A member of a zip archive; it ends where it is damaged, or at once if Python cannot decrypt or decompress it."""

    def __init__(self, archive: zipfile.ZipFile, member: str) -> None:
        self._archive, self._member = archive, member
        self._opened: Readable | None = None
        self.given = 0
        self.failure: str | None = None
        """Why it ended early; None if it did not."""

    def read(self, size: int, /) -> bytes:
        """Returns at most `size` bytes; none at the end."""
        try:
            if self._opened is None:
                self._opened = self._archive.open(self._member)
            out = self._opened.read(size)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
            self.failure = str(error)
            return b""
        self.given += len(out)
        return out


def is_zip(path: Path) -> bool:
    """Returns whether a file begins like a zip archive."""
    with path.open("rb") as file:
        return file.read(len(ZIP)) == ZIP


def is_gzip(path: Path) -> bool:
    """Returns whether a file begins like gzip."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC
