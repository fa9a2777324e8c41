"""Recognises files by their first bytes: decompresses zstd, bzip2 and xz, and names files that are not JSON.

gzip, which most traces are compressed with, is in `gunzip.py`.
"""

from __future__ import annotations

import bz2
import io
import lzma
from collections.abc import Callable, Iterator
from typing import Any

from distprof.merge.scan.gunzip import READ_BYTES, STEP_BYTES, Damage, Readable

STARTS = {"zstd": b"\x28\xb5\x2f\xfd", "bzip2": b"BZh", "xz": b"\xfd7zXZ\0"}
"""Format -> first bytes of its files."""
ERRORS = (OSError, EOFError, lzma.LZMAError)
SNIFFED_BYTES = 1 << 12
"""Number of bytes that suffices to recognise a file."""
FOREIGN = (
    (b"<!doctype", "an HTML page", "was it saved from a login page? download the file itself"),
    (b"<html", "an HTML page", "was it saved from a login page? download the file itself"),
    (b"<?xml", "XML", None),
    (b"version https://git-lfs", "a Git LFS pointer", "fetch the file with git lfs pull"),
    (b"/annex/objects/", "a git-annex pointer", "fetch the file with git annex get"),
    (b"par1", "a parquet table", None),
    (b"sqlite format 3", "an SQLite database", "Nsight Systems exports can be read only from local files"),
    (b"pk\x03\x04", "a ZIP archive", "unzip it"),
    *((b"\x80" + protocol, "a Python pickle", "for torch.cuda.memory snapshots, use distprof memory")
      for protocol in (b"\x02", b"\x03", b"\x04", b"\x05")),
    (b"\n", "binary data, perhaps a Perfetto protobuf trace", "only Chrome traces (JSON) can be merged"),
)
"""First bytes in lower case, the kind of file that begins so, and a hint."""


def format_of(first: bytes) -> str | None:
    """Returns `zstd`, `bzip2` or `xz` according to the first bytes of a file; None if it is none of them."""
    return next((name for name, start in STARTS.items() if first.startswith(start)), None)


class Decompressed:
    """Yields decompressed pieces of at most `STEP_BYTES`; `damage` is set once all of them have been taken.

    Args:
        raw: The compressed bytes, from the start.
        name: Their format, as returned by `format_of`.
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
    """A file object for libraries that require one; counts the bytes read, and cannot seek."""

    def __init__(self, raw: Readable) -> None:
        self._from = raw
        self.num_bytes = 0
        """Bytes read so far."""

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


def looks_like(first: bytes) -> tuple[str, str | None]:
    """Returns what a file is that begins with `first` and is not JSON, and a hint."""
    for prefix, what, hint in FOREIGN:
        if first[:SNIFFED_BYTES].lower().lstrip(b"" if prefix == b"\n" else b" \t\r\n").startswith(prefix):
            return what, hint
    start = first[:SNIFFED_BYTES].lstrip()[:24]
    if b"\0" in start or sum(byte > 126 for byte in start) > len(start) // 3:
        return "binary data", None
    return f"text that is not JSON: {start.decode(errors='replace').splitlines()[0]!r}", None
