"""Whole objects as files: in memory where they are small, else on disk without a name."""

from __future__ import annotations

import io
import tempfile
from typing import IO

from distprof.storage.ahead import HELD_BYTES
from distprof.storage.remote_path import RemotePath

PIECE_BYTES = 1 << 20


def fetched(path: RemotePath) -> IO[bytes]:
    """The content of an object as a file, whose end is also its own."""
    if path.stat().st_size <= HELD_BYTES:
        return io.BytesIO(path.read_bytes())
    return copied(path)


def copied(path: RemotePath) -> IO[bytes]:
    """A file without a name, of which nothing is left when it is closed or the process ends, however that goes."""
    copy = tempfile.TemporaryFile()  # noqa: SIM115 (who reads it closes it)
    with path.open("rb", buffering=0) as file:
        while piece := file.read(PIECE_BYTES):
            copy.write(piece)
    copy.flush()
    copy.seek(0)
    return copy
