"""Whole objects as files: in memory where they are small, else on disk without a name."""

from __future__ import annotations

import errno
import io
import os
import shutil
import tempfile

from distprof.storage.ahead import HELD_BYTES
from distprof.storage.faults import RemoteError
from distprof.storage.remote_path import RemotePath

PIECE_BYTES = 1 << 20


class Nameless(io.FileIO):
    """A file that is closed when nobody refers to it any more: libraries that read it do not say when they are done."""

    def __del__(self) -> None:
        self.close()


def fetched(path: RemotePath) -> io.BytesIO | Nameless:
    """The content of an object as a file, whose end is also its own."""
    if path.stat().st_size <= HELD_BYTES:
        return io.BytesIO(path.read_bytes())
    return copied(path)


def copied(path: RemotePath) -> Nameless:
    """A file without a name, of which nothing is left when it is closed or the process ends, however that goes."""
    size, free = path.stat().st_size, shutil.disk_usage(tempfile.gettempdir()).free
    if size > free:
        raise RemoteError(errno.ENOSPC, f"it has {size:,} bytes, too many for a copy in {tempfile.gettempdir()}",
                          str(path), "set TMPDIR to another folder for copies")
    with tempfile.TemporaryFile() as copy:
        with path.open("rb", buffering=0) as file:
            while piece := file.read(PIECE_BYTES):
                copy.write(piece)
        copy.flush()
        copy.seek(0)
        return Nameless(os.dup(copy.fileno()), "rb")
