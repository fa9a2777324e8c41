"""Decompresses zstd, bzip2 and xz; gzip, in which most traces come, has a room of its own (`gunzip.py`)."""

from __future__ import annotations

import bz2
import io
import lzma
from collections.abc import Callable, Iterator
from typing import Any

from distprof.merge.scan.gunzip import READ_BYTES, STEP_BYTES, Damage, Readable

STARTS = {"zstd": b"\x28\xb5\x2f\xfd", "bzip2": b"BZh", "xz": b"\xfd7zXZ\0"}
"""How files of each format begin."""
ERRORS = (OSError, EOFError, lzma.LZMAError)


def format_of(first: bytes) -> str | None:
    """`zstd`, `bzip2` or `xz`, by the first bytes of a file; None where it is none of them."""
    return next((name for name, start in STARTS.items() if first.startswith(start)), None)


class Decompressed:
    """Decompressed pieces of at most `STEP_BYTES`; `damage` is known once all of them have been taken.

    Args:
        raw: The compressed bytes, from the start.
        name: Their format, as `format_of` says.
    """

    def __init__(self, raw: Readable, name: str) -> None:
        self._raw = _Counted(raw)
        self._name = name
        self.damage: Damage | None = None

    def __iter__(self) -> Iterator[bytes]:
        try:
            file = OPENED[self._name](self._raw)
            while piece := file.read(STEP_BYTES):
                yield piece
        except ERRORS as error:
            self.damage = Damage(reason=f"is cut or damaged ({self._name}: {error})", at_byte=self._raw.num_bytes,
                                 lost="the rest cannot be read")


class _Counted(io.RawIOBase):
    """A file for libraries that take no less; nothing is put back."""

    def __init__(self, raw: Readable) -> None:
        self._from = raw
        self.num_bytes = 0
        """That were read."""

    def readable(self) -> bool:
        return True

    def readinto(self, room: Any) -> int:
        data = self._from.read(min(len(room), READ_BYTES))
        room[:len(data)] = data
        self.num_bytes += len(data)
        return len(data)


def _zstd(raw: io.RawIOBase) -> Any:
    import pyarrow  # takes a while, and few traces are zstd

    return pyarrow.CompressedInputStream(pyarrow.PythonFile(raw, "r"), "zstd")


def _xz(raw: io.RawIOBase) -> Any:
    return lzma.LZMAFile(io.BufferedReader(raw))


OPENED: dict[str, Callable[[io.RawIOBase], Any]] = {
    "zstd": _zstd, "bzip2": lambda raw: bz2.BZ2File(io.BufferedReader(raw)), "xz": _xz}
