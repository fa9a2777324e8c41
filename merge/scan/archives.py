"""Reads traces in tar and zip archives in place, or unpacks them into a folder."""

from __future__ import annotations

import posixpath
import tarfile
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Self

from isal import igzip

from distprof.errors import LIMITS, DataError
from distprof.merge.scan.chunk_reader import ChunkReader
from distprof.merge.scan.decompression import format_of
from distprof.merge.scan.gunzip import MAGIC, READ_BYTES, Gunzip, Readable
from distprof.merge.scan.trace_file import Pieces, TraceFile, is_gzip, is_zip

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".zip")
MEMBER_SUFFIXES = (".json", ".json.gz", ".json.zst", ".json.bz2", ".json.xz")
DAMAGE = (tarfile.TarError, ValueError, IndexError, KeyError, OverflowError, EOFError, MemoryError, RecursionError)
"""What `tarfile` raises for damaged headers."""
DAMAGED_HEADERS = (tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError)  # type: ignore[attr-defined]  # of typeshed
"""What `tarfile` takes for the end of the archive."""


class Archive:
    """Yields a reader for each trace in an archive, in order; `damage` is set once all have been taken.

    A compressed archive can only be read sequentially: a reader is usable until the next one is requested.

    Raises:
        DataError: While iterating: it is not an archive.
    """

    def __init__(self, path: Path, *, label: str = "") -> None:
        self._path = path
        self._label = label or path.name
        self.damage: str | None = None
        self.links: list[str] = []
        """Links named like traces whose target is not in the archive or, if it is compressed, precedes them."""

    def __iter__(self) -> Iterator[ChunkReader]:
        if is_zip(self._path):
            yield from self._zipped()
            return
        count = 0
        try:
            packed = _gunzip(self._path) if is_gzip(self._path) else None
            targets: dict[str, tarfile.TarInfo] = {}
            for tar, member in _members(self._path, packed):
                count += 1
                if not _may_be_trace(member):
                    continue
                if member.isreg():
                    targets[member.name] = member
                    yield self._reader(member, member, tar if packed is not None else None)
                elif packed is None and (target := targets.get(_target(member))) is not None:
                    yield self._reader(member, target, None)
                else:
                    self.links.append(f"{self._label}: {member.name}")
            if packed is not None and packed.damage is not None:
                self.damage = f"{self._label} {packed.damage}"
        except DAMAGE as error:
            if not count:
                raise DataError(f"{self._label} is not a tar archive: {error}",
                                hint="download the file again; its name ends in tar") from error
            self.damage = f"{self._label} is cut off or damaged after {count} members: {error}"
        except OSError as error:
            if error.errno in LIMITS:
                raise
            raise DataError(f"cannot read {self._label}: {error.strerror or error}",
                            hint="check the path and its permissions") from error

    def _zipped(self) -> Iterator[ChunkReader]:
        try:
            with zipfile.ZipFile(self._path) as archive:
                members = archive.infolist()
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
            raise DataError(f"cannot read {self._label}: {error}", hint="download the archive again") from error
        for member in members:
            name = PurePosixPath(member.filename).name
            if name.endswith(MEMBER_SUFFIXES) and not name.startswith("."):
                yield ChunkReader(TraceFile(path=self._path, member=member.filename, size=member.file_size,
                                            label=f"{self._label}: {member.filename}"))

    def _reader(self, member: tarfile.TarInfo, content: tarfile.TarInfo, stream: tarfile.TarFile | None) -> ChunkReader:
        trace = TraceFile(path=self._path, member=member.name, offset=content.offset_data, size=content.size,
                          label=f"{self._label}: {member.name}")
        source = None if stream is None else partial(_Content, stream, member)
        return ChunkReader(trace, source=source)


def _members(path: Path, packed: Gunzip | None) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """Yields members, seeking if the archive is uncompressed, else reading sequentially."""
    with path.open("rb") as file:
        source: Any = file if packed is None else Pieces(packed)
        with tarfile.open(fileobj=source, mode="r:" if packed is None else "r|", bufsize=READ_BYTES,
                          tarinfo=_Member) as tar:
            for member in tar:
                if member.size < 0:
                    raise tarfile.ReadError("a size below 0")
                yield tar, member


class _Member(tarfile.TarInfo):
    """A member whose damaged or truncated header is an error; tarfile would take it for the end of the archive."""

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(tar)
        except DAMAGED_HEADERS as error:
            raise tarfile.ReadError(str(error)) from error


def _gunzip(path: Path) -> Gunzip:
    return Gunzip(lambda stack: stack.enter_context(path.open("rb")), size=path.stat().st_size)


class _Content:
    """The bytes of a member; they end where a truncated archive ends."""

    def __init__(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        self._file: Any = tar.extractfile(member)

    def read(self, size: int, /) -> bytes:
        try:
            return bytes(self._file.read(size))
        except DAMAGE:
            return b""


def _may_be_trace(member: tarfile.TarInfo) -> bool:
    name = PurePosixPath(member.name).name
    is_file = member.isreg() or member.islnk() or member.issym()
    return is_file and not member.issparse() and name.endswith(MEMBER_SUFFIXES) and not name.startswith(".")


def _target(member: tarfile.TarInfo) -> str:
    """Returns the name of the member that a link points to; hard links have it relative to the top of the archive."""
    return member.linkname if member.islnk() else posixpath.normpath(
        posixpath.join(posixpath.dirname(member.name), member.linkname))


def unpack(traces: Iterable[TraceFile], folder: Path) -> dict[TraceFile, TraceFile]:
    """Writes members of compressed archives into separate files: each can then be read without those before it.

    Args:
        traces: Those that are needed.
        folder: Where the files go.

    Returns:
        Member of a compressed archive -> its file, compressed. Traces that can be read in place are not included.
    """
    wanted: dict[Path, dict[int, TraceFile]] = defaultdict(dict)
    for trace in traces:
        if trace.member is not None and is_gzip(trace.path):
            wanted[trace.path][trace.offset] = trace
    files: dict[TraceFile, TraceFile] = {}
    for path, members in wanted.items():
        for trace, content in _taken(path, members):
            output = folder / f"{len(files)}.json.gz"
            if _write(content, output) == trace.size:  # otherwise truncated: its reader counts what is missing
                files[trace] = replace(trace, path=output, member=None, offset=0, size=None, label=trace.name)
    return files


def _taken(path: Path, members: dict[int, TraceFile]) -> Iterator[tuple[TraceFile, Readable]]:
    try:
        for tar, member in _members(path, _gunzip(path)):
            if member.offset_data in members:
                yield members[member.offset_data], _Content(tar, member)
    except DAMAGE:
        return  # listing the archive has reported it


def _write(content: Readable, output: Path) -> int:
    """Writes compressed content unchanged, other content with fast gzip; returns the number of bytes read."""
    first = content.read(READ_BYTES)
    count = len(first)
    is_compressed = first.startswith(MAGIC) or format_of(first) is not None
    with output.open("wb") as raw, ExitStack() as stack:
        target: Any = raw if is_compressed else stack.enter_context(
            igzip.IGzipFile("", "wb", compresslevel=0, fileobj=raw, mtime=0))
        target.write(first)
        while data := content.read(READ_BYTES):
            target.write(data)
            count += len(data)
    return count
