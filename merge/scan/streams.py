"""The text of a trace: a file or a member of an archive comes in, chunks of UTF-8 go out, and what could not be read.

Memory is a few chunks, whatever the file holds.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import FileIO
from itertools import chain
from pathlib import Path

from distprof.errors import DataError
from distprof.merge.scan.gunzip import MAGIC, READ_BYTES, Damage, Gunzip, Readable

CHUNK_BYTES = 1 << 20
SNIFFED_BYTES = 1 << 12
"""Enough of a file to tell what it is."""

BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"),
)
"""First bytes -> how the text is encoded; the mark of UTF-32 begins with that of UTF-16."""

FOREIGN = (
    (b"<!doctype", "an HTML page", "was it saved from a page that asks to log in? download the file itself"),
    (b"<html", "an HTML page", "was it saved from a page that asks to log in? download the file itself"),
    (b"<?xml", "XML", None),
    (b"version https://git-lfs", "a Git LFS pointer", "git lfs pull fetches the file"),
    (b"/annex/objects/", "a git-annex pointer", "git annex get fetches the file"),
    (b"par1", "a parquet table", None),
    (b"sqlite format 3", "an SQLite database (an Nsight Systems export?)", None),
    (b"pk\x03\x04", "a ZIP archive", "unzip it"),
    (b"\x28\xb5\x2f\xfd", "zstd", "unzstd it"),
    (b"bzh", "bzip2", "bunzip2 it"),
    (b"\xfd7zxz", "xz", "unxz it"),
    (b"\x80\x02", "a Python pickle", None), (b"\x80\x03", "a Python pickle", None),
    (b"\x80\x04", "a Python pickle", None), (b"\x80\x05", "a Python pickle", None),
    (b"\n", "binary data, a Perfetto protobuf trace perhaps", "only Chrome traces (JSON) can be merged"),
)
"""First bytes in small letters -> what begins so, and what to do about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFile:
    """Where a trace lies: a file, or a member of a tar archive, which may be gzipped."""

    path: Path
    member: str | None = None
    """Name in the archive at `path`."""
    offset: int = 0
    """Where the member begins in the archive, decompressed."""
    size: int | None = None
    """Bytes of the member as it lies in the archive."""
    label: str = ""
    """What to call it, if not by its file name."""

    @property
    def name(self) -> str:
        """What to call it in a line of text."""
        own = self.path.name if self.member is None else f"{self.path.name}: {self.member}"
        return self.label or own

    @property
    def num_bytes(self) -> int:
        """Its length as it lies there, compressed or not."""
        return self.path.stat().st_size if self.size is None else self.size

    def open(self, stack: ExitStack) -> Readable:
        """Its bytes as they lie there; what has to be closed goes on the stack."""
        if self.member is None or self.size is None:
            return stack.enter_context(self.path.open("rb", buffering=0))
        if is_gzip(self.path):
            archive = Pieces(Gunzip(lambda own: own.enter_context(self.path.open("rb"))))
            archive.skip(self.offset)
            return Part(archive, self.size)
        file = stack.enter_context(self.path.open("rb"))
        file.seek(self.offset)
        return Part(file, self.size)


class ChunkReader:
    """Iterates over the text of a trace. What cannot be read is told by `damage` afterwards, it does not raise.

    Args:
        trace: Where it lies.
        chunk_bytes: Length of every chunk but the last.
        max_bytes: More decompressed bytes than these are not read: a file of 1 MB can hold 1 GB of zeros.
        source: Opens the bytes of the trace instead of `trace.open`, once and without salvage: a member of an archive
            that is being read through.
        salvage: False to spend no second reading on what a damaged gzip member may still hold.

    Raises:
        DataError: While iterating: it is empty, is no JSON, or cannot be opened.
    """

    def __init__(self, trace: TraceFile, *, chunk_bytes: int = CHUNK_BYTES, max_bytes: int | None = None,
                 source: Callable[[], Readable] | None = None, salvage: bool = True) -> None:
        self.trace = trace
        self.damage: Damage | None = None
        self.num_bytes = 0
        """Bytes of text given so far."""
        self._chunk_bytes = chunk_bytes
        self._max_bytes = max_bytes
        self._source = source
        self._salvage = salvage and source is None
        self._plain: FileIO | None = None
        """The file, where the text is what lies there."""

    def __iter__(self) -> Iterator[bytes]:
        with self._readable(), ExitStack() as stack:
            text = _as_utf8(self._pieces(stack))
            for chunk in self._limited(_chunked(self._checked(text), self._chunk_bytes)):
                self.num_bytes += len(chunk)
                yield chunk
            self._plain = None

    def fill(self, room: memoryview) -> int:
        """Reads what follows the last chunk straight into memory, where that can be done.

        Returns:
            Bytes that were read; 0 at the end, and where only iterating goes on.
        """
        if self._plain is None:
            return 0
        with self._readable():
            if self._plain.tell() != self.num_bytes:
                return 0
            count = self._plain.readinto(room) or 0
        self.num_bytes += count
        return count

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise DataError(f"expected a Chrome trace in {self.trace.name}, cannot read it: {error.strerror or error}",
                            hint="check the path and its permissions") from error

    def _pieces(self, stack: ExitStack) -> Iterator[bytes]:
        """Decompressed bytes."""
        raw = self._source() if self._source is not None else self.trace.open(stack)
        first = raw.read(READ_BYTES)
        if first.startswith(MAGIC):
            yield from self._gunzipped(raw, first)
        else:
            if isinstance(raw, FileIO) and self._max_bytes is None and _encoding(first) is None:
                self._plain = raw
            yield from chain([first], iter(lambda: raw.read(READ_BYTES), b""))
        if isinstance(raw, Part) and raw.missing:
            self.damage = Damage(reason="is cut", at_byte=raw.given,
                                 lost=f"{raw.missing} of {self.trace.size} bytes are not in the archive")

    def _gunzipped(self, raw: Readable, first: bytes) -> Iterator[bytes]:
        opened: list[Readable] = [Pieces(chain([first], iter(lambda: raw.read(READ_BYTES), b"")))]
        file = Gunzip(lambda stack: opened.pop() if opened else self.trace.open(stack), size=self.trace.num_bytes,
                      salvage=self._salvage)
        yield from file
        self.damage = file.damage

    def _checked(self, text: Iterator[bytes]) -> Iterator[bytes]:
        """Refuses what does not begin like JSON."""
        first = b""
        for piece in text:
            if not first and not piece.strip():
                yield piece  # flat memory for a file of blanks too
                continue
            first += piece
            if first.lstrip().startswith((b"{", b"[")):
                yield first
                yield from text
                return
            if len(first) >= SNIFFED_BYTES:
                break
        self._refuse(first)

    def _refuse(self, first: bytes) -> None:
        if not first.strip():
            found = f"a file that {self.damage}" if self.damage is not None else "an empty file"
            raise DataError(f"expected a Chrome trace in {self.trace.name}, found {found}",
                            hint="record it again, or leave it out")
        what, hint = looks_like(first)
        raise DataError(f"expected a Chrome trace in {self.trace.name}, found {what}",
                        hint=hint or "only Chrome traces (JSON) can be merged")

    def _limited(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            left = len(chunk) if self._max_bytes is None else self._max_bytes - self.num_bytes
            if len(chunk) > left:
                yield from [chunk[:left]] if left else []
                self.damage = Damage(reason=f"holds more than the {self._max_bytes} bytes that are allowed",
                                     at_byte=self.num_bytes, lost="what came after was not read")
                return
            yield chunk


class Pieces:
    """A file made of pieces of bytes."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._held = memoryview(b"")

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes, what is at hand; none at the end."""
        while not self._held:
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._held = memoryview(piece)
        out, self._held = self._held[:size], self._held[size:]
        return bytes(out)

    def skip(self, count: int) -> None:
        """Goes on by `count` bytes, or to the end."""
        while count > 0 and (out := self.read(count)):
            count -= len(out)


class Part:
    """The next `size` bytes of a file; fewer where it ends before."""

    def __init__(self, raw: Readable, size: int) -> None:
        self._raw = raw
        self._size = size
        self.given = 0
        self._ended = False

    @property
    def missing(self) -> int:
        """Bytes that turned out not to be there."""
        return self._size - self.given if self._ended else 0

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; none at the end."""
        out = self._raw.read(min(size, self._size - self.given))
        self.given += len(out)
        self._ended |= not out
        return out


def is_gzip(path: Path) -> bool:
    """True where a file begins like gzip."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def looks_like(first: bytes) -> tuple[str, str | None]:
    """What a file that begins with `first` is, in words, and what to do about it; for what is no JSON."""
    for prefix, what, hint in FOREIGN:
        if first[:SNIFFED_BYTES].lower().lstrip(b"" if prefix == b"\n" else b" \t\r\n").startswith(prefix):
            return what, hint
    start = first[:SNIFFED_BYTES].lstrip()[:24]
    if b"\0" in start or sum(byte > 126 for byte in start) > len(start) // 3:
        return "binary data", None
    return f"text that is no JSON: {start.decode(errors='replace').splitlines()[0]!r}", None


def _as_utf8(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Takes a byte order mark away; UTF-16 and UTF-32 become UTF-8."""
    first = b""
    while len(first) < 4 and (piece := next(pieces, b"")):
        first += piece
    encoding = _encoding(first)
    if encoding == "utf-8-sig":
        first, encoding = first.removeprefix(codecs.BOM_UTF8), None
    whole = chain([first], pieces)
    if encoding is None:
        yield from whole
        return
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    for piece in whole:
        yield decoder.decode(piece).encode()
    yield decoder.decode(b"", final=True).encode()


def _encoding(first: bytes) -> str | None:
    marked = next((name for mark, name in BYTE_ORDER_MARKS if first.startswith(mark)), None)
    if marked is not None or len(first) < 2:
        return marked
    # JSON begins with two ASCII characters: a zero beside the first one is half of it
    return {(False, True): "utf-16-le", (True, False): "utf-16-be"}.get((first[0] == 0, first[1] == 0))


def _chunked(pieces: Iterator[bytes], size: int) -> Iterator[bytes]:
    """The same bytes in chunks of `size`."""
    held: list[bytes] = []
    length = 0
    for piece in pieces:
        if not length and len(piece) == size:
            yield piece  # as most are: no copy
            continue
        held.append(piece)
        length += len(piece)
        if length < size:
            continue
        whole = b"".join(held)
        full = length - length % size
        yield from (whole[at:at + size] for at in range(0, full, size))
        held, length = [whole[full:]], length - full
    if length:
        yield b"".join(held)
