"""Rows of a table in numbered parts, each of which is read as a whole; kept in memory if few, else in files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from distprof.arrays import Array

ROOM = 1 << 15
"""Maximum number of rows in memory before they are written to files: some 10 MB of collectives."""


class Parts:
    """Takes rows in any order of parts, and returns the rows of a part in the order in which they were added."""

    def __init__(self, folder: Path | None, name: str, room: int = ROOM) -> None:
        """Creates an empty store.

        Args:
            folder: Where files are created; None: all rows stay in memory.
            name: Prefix of the files, unique within a folder.
            room: Maximum number of rows in memory before they are written to files.
        """
        self._folder, self._name, self._room = folder, name, room
        self._held: dict[int, list[pl.DataFrame]] = defaultdict(list)
        self._num_held = 0
        self._counts: dict[int, int] = defaultdict(int)
        self._empty = pl.DataFrame()

    @property
    def numbers(self) -> Sequence[int]:
        """Numbers of the parts that have rows, ascending."""
        return sorted(self._counts)

    def count(self, part: int) -> int:
        """Returns the number of rows of a part."""
        return self._counts.get(part, 0)

    def __len__(self) -> int:
        return sum(self._counts.values())

    def add(self, rows: pl.DataFrame, part: Array | int) -> None:
        """Adds rows; all rows of a part must have the same columns.

        Args:
            rows: Rows in order.
            part: int array, the part of each row; or one part for all rows.
        """
        self._empty = rows.clear()
        for number, some in _by_part(rows, part):
            self._held[number].append(some)
            self._counts[number] += len(some)
            self._num_held += len(some)
        if self._folder is not None and self._num_held > self._room:
            self._write()

    def read(self, part: int) -> pl.DataFrame:
        """Returns all rows of a part."""
        pieces = list(self.pieces(part))
        return pl.concat(pieces, rechunk=True) if pieces else self._empty

    def take(self, part: int) -> pl.DataFrame:
        """Returns all rows of a part and removes them."""
        rows = self.read(part)
        self.drop(part)
        return rows

    def pieces(self, part: int) -> Iterator[pl.DataFrame]:
        """Yields the rows of a part piece by piece; rows that were added together stay together."""
        path = self._path(part)
        if path is not None and path.exists():
            yield from _streams(path)
        yield from self._held.get(part, ())

    def drop(self, part: int) -> None:
        """Removes the rows of a part."""
        self._num_held -= sum(map(len, self._held.pop(part, ())))
        self._counts.pop(part, None)
        path = self._path(part)
        if path is not None:
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Removes all rows."""
        for part in self.numbers:
            self.drop(part)

    def _path(self, part: int) -> Path | None:
        return None if self._folder is None else self._folder / f"{self._name}-{part}.rows"

    def _write(self) -> None:
        for part, frames in self._held.items():
            path = self._path(part)
            assert path is not None
            with path.open("ab") as file:
                pl.concat(frames).write_ipc_stream(file, compat_level=pl.CompatLevel.oldest())
        self._held.clear()
        self._num_held = 0


def _by_part(rows: pl.DataFrame, part: Array | int) -> Iterator[tuple[int, pl.DataFrame]]:
    if not len(rows):
        return
    if isinstance(part, int):
        yield part, rows
        return
    order = np.argsort(part, kind="stable")
    ordered = part[order]
    firsts = np.flatnonzero(np.diff(ordered, prepend=ordered[0] - 1))
    if len(firsts) == 1:
        yield int(ordered[0]), rows
        return
    for first, end in zip(firsts.tolist(), [*firsts[1:].tolist(), len(rows)], strict=True):
        yield int(ordered[first]), rows[order[first:end]]


def _streams(path: Path) -> Iterator[pl.DataFrame]:
    """Yields the frames of a file; each was written as a stream of its own, with its own dictionary of texts."""
    import pyarrow as pa  # slow to import, and most runs fit in memory

    size = path.stat().st_size
    with path.open("rb") as file:
        while file.tell() < size:
            with pa.ipc.open_stream(file) as stream:
                table = stream.read_all()
            frame = pl.from_arrow(table)
            assert isinstance(frame, pl.DataFrame)
            yield frame
