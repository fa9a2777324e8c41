"""Decompresses gzip files, also damaged ones: every byte that can be recovered, and what is wrong with the file."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

from isal import igzip_lib

MAGIC = b"\x1f\x8b"
READ_BYTES = 1 << 16
"""Compressed bytes read at a time; pieces of this size stay in the CPU caches until they are copied."""
STEP_BYTES = 1 << 18
"""Maximum number of bytes decompressed at a time."""
CHECKS = {"incorrect data check": "fails its checksum", "incorrect length check": "fails its length check"}
"""What zlib reports about a member that it could decompress -> what a user reads."""


class Readable(Protocol):
    """A source of bytes: an open file, a part of one, a member of an archive."""

    def read(self, size: int, /) -> bytes:
        """Returns at most `size` bytes; none at the end."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Why a file yields less than it should. As text it follows the name of the file."""

    reason: str
    """Like `is cut`, `fails its checksum`."""
    at_byte: int
    """Where reading ended, in bytes of the stored file, which may be compressed."""
    lost: str
    """What is missing, in words."""

    def __str__(self) -> str:
        return f"{self.reason} at byte {self.at_byte}: {self.lost}"


class _CompressedBytes:
    """Compressed bytes that can be put back, and their count."""

    def __init__(self, raw: Readable) -> None:
        self._raw = raw
        self._back = b""
        self.offset = 0
        """Bytes read and not put back."""

    def read(self) -> bytes:
        data, self._back = self._back or self._raw.read(READ_BYTES), b""
        self.offset += len(data)
        return data

    def put_back(self, data: bytes) -> None:
        self._back = data + self._back
        self.offset -= len(data)

    def skip(self, count: int) -> None:
        while count > 0 and (data := self.read()):
            self.put_back(data[count:])
            count -= len(data)


class Gunzip:
    """Yields decompressed pieces of at most `STEP_BYTES`; `damage` is set once all of them have been taken.

    isal decompresses. It drops its buffered output on an error, so a damaged member is read again with zlib, which can
    decompress single bytes: nothing before the damage is lost.

    Args:
        source: Opens the compressed file, at its start; what has to be closed goes on the stack.
        size: Its length in bytes, None if unknown.
    """

    def __init__(self, source: Callable[[ExitStack], Readable], *, size: int | None = None) -> None:
        self._source = source
        self._size = size
        self._found: list[Damage] = []

    @property
    def damage(self) -> Damage | None:
        """What is wrong with the file; None if nothing is."""
        return self._found[-1] if self._found else None

    def __iter__(self) -> Iterator[bytes]:
        with ExitStack() as stack:
            feed = _CompressedBytes(self._source(stack))
            while not self._found and self._begins_member(feed):
                start, given = feed.offset, 0
                for piece in self._member(feed):
                    given += len(piece)
                    yield piece
                if self._found:
                    yield from self._rest_of_member(start, given)

    def _begins_member(self, feed: _CompressedBytes) -> bool:
        """Skips zeros, which tapes and block devices leave after a file; returns whether a member begins."""
        first = feed.offset == 0
        while data := feed.read():
            rest = data.lstrip(b"\0")
            if len(rest) == 1:
                rest += feed.read()
            if rest:
                feed.put_back(rest)
                if not MAGIC.startswith(rest[:2]) and not first:
                    self._found.append(self._ended("is followed by data that is not gzip", feed.offset))
                return not self._found
        return False

    def _member(self, feed: _CompressedBytes) -> Iterator[bytes]:
        decompressor = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
        while not decompressor.eof:
            data = feed.read() if decompressor.needs_input else b""
            if decompressor.needs_input and not data:
                self._found.append(Damage(reason="is cut", at_byte=feed.offset,
                                          lost="the rest is not in the file"))
                return
            try:
                piece = decompressor.decompress(data, STEP_BYTES)
            except igzip_lib.IsalError as error:  # type: ignore[misc]
                self._found.append(self._ended(f"is damaged ({error})", feed.offset))
                return
            yield piece
        feed.put_back(decompressor.unused_data)

    def _rest_of_member(self, start: int, given: int) -> Iterator[bytes]:
        """Yields what the member at `start` contains after its first `given` decompressed bytes."""
        with ExitStack() as stack:
            feed = _CompressedBytes(self._source(stack))
            feed.skip(start)
            for piece in self._careful(feed):
                if given < len(piece):
                    yield piece[given:]
                given = max(given - len(piece), 0)

    def _careful(self, feed: _CompressedBytes) -> Iterator[bytes]:
        """Decompresses with zlib; when it raises, retries with ever smaller limits, finally one byte from one byte."""
        decompressor, data, step, take = zlib.decompressobj(wbits=31), b"", STEP_BYTES, READ_BYTES
        while not decompressor.eof:
            data = data or feed.read()
            if not data:
                return  # truncated: the damage is already noted
            before = decompressor.copy()
            try:
                piece = decompressor.decompress(data[:take], step)
            except zlib.error as error:
                if take == 1:
                    self._found.append(self._broken(str(error).rpartition(": ")[2], feed.offset - len(data)))
                    return
                decompressor, step, take = before, max(step // 2, 1), take if step > 1 else 1
                continue
            data = decompressor.unconsumed_tail + data[take:]
            yield piece

    def _broken(self, words: str, offset: int) -> Damage:
        if words in CHECKS:
            return Damage(reason=CHECKS[words], at_byte=offset, lost="some earlier byte is wrong")
        return self._ended(f"is damaged ({words})", offset)

    def _ended(self, reason: str, offset: int) -> Damage:
        left = "the rest" if self._size is None else f"{self._size - offset} of {self._size} bytes"
        return Damage(reason=reason, at_byte=offset, lost=f"{left} cannot be read")
