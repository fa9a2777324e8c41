"""A file that is made of pieces in a row, written like a `Joined`: by this process alone, to this machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distprof.storage.writing.joined import Parts


class OneFile:
    """Writes it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def begin(self, num_pieces: int, between: bytes) -> None:
        self._file = self._path.open("wb")

    def share(self, index: int) -> None:
        """None: workers only write what is appended here."""

    def write(self, content: bytes) -> None:
        self._file.write(content)

    def append(self, index: int, file: Path, parts: Parts | None) -> None:
        """Copies within the kernel: the pieces are as large as the merged trace."""
        self._file.flush()
        with file.open("rb") as piece:
            try:
                while os.sendfile(self._file.fileno(), piece.fileno(), None, 1 << 30):
                    pass
            except OSError:  # some file systems cannot; what was sent is sent
                self._file.seek(0, os.SEEK_END)
                shutil.copyfileobj(piece, self._file)
        self._file.seek(0, os.SEEK_END)

    def finish(self, contents: Iterable[bytes]) -> None:
        self._file.writelines(contents)
        self._file.close()
