"""Reads the text of a trace as chunks of UTF-8, and remembers what could not be read.

Memory is that of a few chunks, whatever the file contains.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from io import FileIO
from itertools import chain

from distprof.errors import LIMITS, DataError
from distprof.merge.scan import nsys, rocprof
from distprof.merge.scan.decompression import SNIFFED_BYTES, Decompressed, format_of, looks_like
from distprof.merge.scan.gunzip import MAGIC, READ_BYTES, Damage, Gunzip, Readable
from distprof.merge.scan.repair import in_microseconds
from distprof.merge.scan.trace_file import Part, Pieces, TraceFile, Unzipped

CHUNK_BYTES = 1 << 20
BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"),
)
"""First bytes -> encoding of the text; the mark of UTF-16 is a prefix of that of UTF-32."""

LINES = re.compile(rb'\s*+\{(?![^\n]*"traceEvents")[^\n]*?"ph"\s*+:[^\n]*\}[ \t\r]*\n\s*+\{[^\n]*?"ph"\s*+:')
"""Matches the beginning of a file with one event per line and nothing around them."""
BETWEEN_LINES = re.compile(rb"\}\s*\n\s*\{")
HEAD_BYTES = 1 << 16
UNMARKED: dict[tuple[bool, ...], str] = {
    (False, True, True, True): "utf-32-le", (True, True, True, False): "utf-32-be",
    (False, True, False, True): "utf-16-le", (True, False, True, False): "utf-16-be",
}
"""Which of the first four bytes are zero -> encoding of a text without a byte order mark."""


class ChunkReader:
    """Iterates over the text of a trace. Text that cannot be read raises no exception: it is in `damage` afterwards.

    Args:
        trace: Where the trace is.
        chunk_bytes: Length of every chunk but the last.
        max_bytes: Decompressed bytes beyond this number are not read: a file of 1 MB can contain 1 GB of zeros.
        source: Opens the bytes of the trace, once, in place of `trace.open`: for a member of an archive that is being
            read
            sequentially. What a damaged gzip member still holds is read by `trace.open` nevertheless.

    Raises:
        DataError: While iterating: it is empty, is not JSON, or cannot be opened.
    """

    def __init__(self, trace: TraceFile, *, chunk_bytes: int = CHUNK_BYTES, max_bytes: int | None = None,
                 source: Callable[[], Readable] | None = None) -> None:
        self.trace = trace
        self.damage: Damage | None = None
        self.num_bytes = 0
        """Bytes of text yielded so far."""
        self.encoding: str | None = None
        """Encoding of an uncompressed text; None for UTF-8 without a byte order mark. Known with the first chunk."""
        self.is_compressed = False
        """Known with the first chunk."""
        self.is_made = False
        """True if the text is made from another tool's export: nothing follows its events. Known with the first chunk.
        """
        self._chunk_bytes = chunk_bytes
        self._max_bytes = max_bytes
        self._source = source
        self._plain: FileIO | None = None
        """The file, if its bytes are the text."""

    def __iter__(self) -> Iterator[bytes]:
        with self._readable(), ExitStack() as stack:
            text = self._converted(_as_utf8(self._pieces(stack)))
            text = in_microseconds(text) if self.trace.in_ns else text
            text = text if self.trace.anonymiser is None else self.trace.anonymiser.pieces(text)
            for chunk in self._limited(_chunked(self._checked(text), self._chunk_bytes)):
                self.num_bytes += len(chunk)
                yield chunk
            self._plain = None

    def fill(self, room: memoryview) -> int:
        """Reads what follows the last chunk directly into memory, if possible.

        Returns:
            Number of bytes read; 0 at the end, and if the text can only be read by iterating.
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
            if error.errno in LIMITS:  # another file could not be opened either
                raise
            raise DataError(f"cannot read {self.trace.name}: {error.strerror or error}",
                            hint=getattr(error, "hint", "") or "check the path and its permissions") from error

    def _pieces(self, stack: ExitStack) -> Iterator[bytes]:
        """Yields decompressed bytes."""
        raw = self._source() if self._source is not None else self.trace.open(stack)
        first = raw.read(READ_BYTES)
        name = format_of(first)
        self.is_compressed = name is not None or first.startswith(MAGIC)
        if first.startswith(MAGIC):
            yield from self._gunzipped(raw, first)
        elif first.startswith(nsys.MAGIC) and self.trace.member is None and isinstance(raw, FileIO):
            self.is_compressed = self.is_made = True
            yield from self._exported()
        elif name is not None:
            file = Decompressed(_whole(raw, first), name)
            yield from file
            self.damage = file.damage
        else:
            self.encoding = _encoding(first)
            is_plain = self.encoding is None and not self.trace.is_changed
            if isinstance(raw, FileIO) and self._max_bytes is None and is_plain:
                self._plain = raw
            yield from chain([first], iter(lambda: raw.read(READ_BYTES), b""))
        if isinstance(raw, Part) and raw.missing:
            self.damage = Damage(reason="is cut", at_byte=raw.given,
                                 lost=f"{raw.missing} of {self.trace.size} bytes are not in the archive")

        if isinstance(raw, Unzipped) and raw.failure is not None:
            self.damage = Damage(reason=f"is damaged ({raw.failure})", at_byte=raw.given,
                                 lost="the rest cannot be read")

    def _converted(self, text: Iterator[bytes]) -> Iterator[bytes]:
        """Makes a trace from the output of rocprofv3, or from events with one line each."""
        first = next(text, b"")
        text = chain([first], text)
        if LINES.match(first[:HEAD_BYTES]) is not None:
            self._plain, self.is_compressed, self.is_made = None, True, True
            return _as_list(text)
        if rocprof.BEGIN.match(first) is None:
            return text
        self._plain, self.is_compressed, self.is_made = None, True, True
        return rocprof.chrome_text(text, self.trace.name)

    def _exported(self) -> Iterator[bytes]:
        """Yields the trace made from a database; from a damaged one, what comes before the damage."""
        num_bytes = 0
        try:
            for piece in nsys.chrome_text(self.trace.path):
                num_bytes += len(piece)
                yield piece
        except DataError as error:
            if not num_bytes:
                raise
            self.damage = Damage(reason=f"is damaged ({error.__cause__})", at_byte=num_bytes,
                                 lost="the rest cannot be read")

    def _gunzipped(self, raw: Readable, first: bytes) -> Iterator[bytes]:
        opened = [_whole(raw, first)]
        file = Gunzip(lambda stack: opened.pop() if opened else self.trace.open(stack), size=self.trace.num_bytes)
        yield from file
        self.damage = file.damage

    def _checked(self, text: Iterator[bytes]) -> Iterator[bytes]:
        """Refuses text that does not begin like JSON."""
        first = b""
        for piece in text:
            if not first and not piece.strip():
                yield piece  # keeps memory flat for a file of blanks too
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
            raise DataError(f"{self.trace.name} is not a Chrome trace but {found}",
                            hint="record it again, or omit it")
        what, hint = looks_like(first)
        raise DataError(f"{self.trace.name} is not a Chrome trace but {what}",
                        hint=hint or "only Chrome traces (JSON) can be merged")

    def _limited(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            left = len(chunk) if self._max_bytes is None else self._max_bytes - self.num_bytes
            if len(chunk) > left:
                yield from [chunk[:left]] if left else []
                self.damage = Damage(reason=f"is larger than the allowed {self._max_bytes} bytes",
                                     at_byte=self.num_bytes, lost="the rest was not read")
                return
            yield chunk


def _whole(raw: Readable, first: bytes) -> Readable:
    """Returns a file whose first bytes were already read as a whole again."""
    return Pieces(chain([first], iter(lambda: raw.read(READ_BYTES), b"")))


def _as_utf8(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Removes a byte order mark; converts UTF-16 and UTF-32 to UTF-8."""
    first = b""
    for piece in pieces:  # some are empty, as gzip members may be
        first += piece
        if len(first) >= 4:
            break
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


def _as_list(text: Iterator[bytes]) -> Iterator[bytes]:
    """Turns events with one line each into a JSON list."""
    held = b"["
    for piece in text:
        whole = BETWEEN_LINES.sub(b"},\n{", held + piece)
        cut = whole.rfind(b"}")  # what follows it may continue in the next piece
        yield whole[:max(cut, 0)]
        held = whole[max(cut, 0):]
    yield held + b"]"


def _encoding(first: bytes) -> str | None:
    marked = next((name for mark, name in BYTE_ORDER_MARKS if first.startswith(mark)), None)
    # JSON begins with two ASCII characters, so zero bytes beside the first one belong to its encoding
    return marked or UNMARKED.get(tuple(byte == 0 for byte in first[:4]))


def _chunked(pieces: Iterator[bytes], size: int) -> Iterator[bytes]:
    """Yields the same bytes in chunks of `size`."""
    held: list[bytes] = []
    length = 0
    for piece in pieces:
        if not length and len(piece) == size:
            yield piece  # the usual case: no copy
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
