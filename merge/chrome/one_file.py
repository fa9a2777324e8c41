"""A file that is made of pieces in a row, written like a `Joined`: by this process alone, to this machine."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from distprof.system import send

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
        """The pieces are as large as the merged trace."""
        with file.open("rb") as piece:
            send(piece, self._file)

    def finish(self, contents: Iterable[bytes]) -> None:
        self._file.writelines(contents)
        self._file.close()
