"""A part of a gzip file, which is a file by itself: the same text gives the same bytes wherever it is compressed.

ISA-L hashes the third byte of a stream from a register that it has not set, which holds the address of the compressor:
one address in some thousands changes which matches are found, with the same text out. The code that empties a stream
does not: it takes the first bytes here.
"""

from __future__ import annotations

from isal import isal_zlib

LEVEL = 1
GZIP = 31
"""wbits of a deflate stream with a gzip header; no name and no time are in it."""
FIRST_BYTES = 16
"""Bytes that ISA-L leaves to the code that empties a stream; 4 at least, and 16 at most, lead it past its fault."""


class GzipMember:
    """Compresses text, which comes in pieces; the same pieces give the same bytes."""

    def __init__(self) -> None:
        self._packer = isal_zlib.compressobj(LEVEL, wbits=GZIP)
        self._is_empty = True

    def add(self, text: bytes | memoryview) -> bytes:
        """What can be written of it by now; where more follows, the first text has 4 bytes or more."""
        if not self._is_empty:
            return self._packer.compress(text)
        self._is_empty = False
        first = self._packer.compress(text[:FIRST_BYTES]) + self._packer.flush(isal_zlib.Z_SYNC_FLUSH)
        return first + self._packer.compress(text[FIRST_BYTES:])

    def end(self) -> bytes:
        """The rest."""
        return self._packer.flush()


def packed(text: bytes) -> bytes:
    """A member with this text."""
    member = GzipMember()
    return member.add(text) + member.end()
