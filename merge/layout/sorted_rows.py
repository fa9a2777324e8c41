"""External merge sort: rows in order of their keys; those that exceed the memory limit are in a temporary file."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from io import BufferedRandom
from pathlib import Path
from typing import Any

import numpy as np

from distprof.arrays import Array, Integers

ROOM = 1 << 20
"""Maximum number of rows in memory: some 100 MB during sorting."""
MOST_RUNS = 1 << 8
"""Maximum number of sorted runs among which the memory is divided. With more, each still gets this share, because
shorter reads cost more than they save."""
KEY_BITS = 62

Columns = tuple[Any, ...]


class SortedRows:
    """Takes rows in any order and returns them sorted, in blocks."""

    def __init__(self, kinds: Mapping[str, Any], num_keys: int, folder: Path | None = None, room: int = ROOM) -> None:
        """Creates an empty store.

        Args:
            kinds: Name and type of each column.
            num_keys: Number of key columns, which come first, most significant first: integers below 2^62, unique as a
                whole. Without keys, rows have no order.
            folder: Where the temporary file is created; None: in the system's default folder.
            room: Maximum number of rows in memory.
        """
        self._kinds, self._num_keys = list(map(np.dtype, kinds.values())), num_keys
        self._folder, self._room = folder, room
        self._held: list[Columns] = []
        self._num_held = 0
        self._runs: list[tuple[int, int]] = []
        """Offset in the file and number of rows of each sorted run."""
        self._file: Any = None

    def __len__(self) -> int:
        return self._num_held + sum(count for _, count in self._runs)

    def add(self, *columns: Any) -> None:
        """Adds rows; the arrays must not change afterwards."""
        self._held.append(columns)
        self._num_held += len(columns[0])
        if self._num_held >= self._room:
            self._spill()

    def close(self) -> None:
        """Releases memory and file."""
        self._held, self._num_held, self._runs = [], 0, []
        if self._file is not None:
            self._file.close()
            self._file = None

    def parts(self) -> Iterator[Columns]:
        """Yields all rows, in no order."""
        for run in map(self._reader, self._runs):
            while run.fill():
                yield run.take(len(run))
        if self._num_held:
            yield tuple(self._joined(range(len(self._kinds))))

    def blocks(self) -> Iterator[Columns]:
        """Yields all rows in order of their keys."""
        if not self._runs:
            if self._num_held:
                yield self._held_in_order()
            return
        if self._num_held:
            self._spill()
        runs = [run for run in map(self._reader, self._runs) if run.fill()]
        while runs:
            # the rows of a run after the last one that was read are unknown
            limit = min((run.last for run in runs if run.has_more), default=None)
            pieces = [run.take(run.count_until(limit)) for run in runs if limit is None or run.first <= limit]
            yield _in_order([np.concatenate(column) for column in zip(*pieces, strict=True)], self._num_keys)
            runs = [run for run in runs if run.fill()]

    def _spill(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
        place = self._file.seek(0, os.SEEK_END)
        order = _order(self._joined(range(self._num_keys)))
        for index in range(len(self._kinds)):
            column, = self._joined([index])
            self._file.write(memoryview(column if order is None else column.take(order)).cast("B"))
        self._file.flush()
        self._runs.append((place, self._num_held))
        self._held, self._num_held = [], 0

    def _held_in_order(self) -> Columns:
        columns = self._joined(range(len(self._kinds)))
        self._held = [tuple(columns)]
        return _in_order(columns, self._num_keys)

    def _joined(self, indices: Sequence[int]) -> list[Any]:
        """Returns columns of the rows in memory."""
        return [np.concatenate([part[index] for part in self._held], dtype=self._kinds[index]) for index in indices]

    def _reader(self, run: tuple[int, int]) -> _Run:
        assert self._file is not None
        room = max(self._room // min(len(self._runs), MOST_RUNS), 1)
        return _Run(self._file, *run, self._kinds, self._num_keys, room)


class _Run:
    """Reads a sorted run of the file, block by block."""

    first: tuple[int, ...]
    """Keys of the next row; `last`: of the last row that was read."""
    last: tuple[int, ...]

    def __init__(self, file: BufferedRandom, place: int, count: int, kinds: Sequence[Any], num_keys: int,
                 room: int) -> None:
        self._file, self._count, self._kinds, self._num_keys, self._room = file, count, kinds, num_keys, room
        sizes = [count * kind.itemsize for kind in kinds]
        self._places = [place + sum(sizes[:index]) for index in range(len(sizes))]
        self._num_read = 0
        self._columns: list[Any] = [np.empty(0, kind) for kind in kinds]

    def __len__(self) -> int:
        return len(self._columns[0])

    @property
    def has_more(self) -> bool:
        """True if not all rows were read."""
        return self._num_read < self._count

    def fill(self) -> bool:
        """Reads on if no read row is left; returns False at the end."""
        if not len(self) and self.has_more:
            rows = min(self._room, self._count - self._num_read)
            self._columns = [self._read(place + self._num_read * kind.itemsize, rows, kind)
                             for place, kind in zip(self._places, self._kinds, strict=True)]
            self._num_read += rows
            self.first, self.last = self._keys_of(0), self._keys_of(-1)
        return len(self) > 0

    def _read(self, place: int, rows: int, kind: Any) -> Any:
        array: Any = np.empty(rows, kind)
        self._file.seek(place)
        if self._file.readinto(memoryview(array).cast("B")) < array.nbytes:
            raise OSError("expected a temporary file as long as it was written, found a shorter one")
        return array

    def _keys_of(self, row: int) -> tuple[int, ...]:
        return tuple(int(column[row]) for column in self._columns[:self._num_keys])

    def count_until(self, limit: tuple[int, ...] | None) -> int:
        """Returns the number of rows up to and including these keys."""
        low, high = 0, len(self)
        if limit is None or self.last <= limit:
            return high
        for column, key in zip(self._columns[:self._num_keys], limit, strict=True):
            # rows below `low` are less than the limit, rows from `high` are greater; those between are equal so far
            low, high = (low + int(np.searchsorted(column[low:high], column.dtype.type(key), side))
                         for side in ("left", "right"))
        return high

    def take(self, count: int) -> Columns:
        """Returns the next rows."""
        taken = tuple(column[:count] for column in self._columns)
        self._columns = [column[count:] for column in self._columns]
        if len(self):
            self.first = self._keys_of(0)
        return taken


def _in_order(columns: Sequence[Array], num_keys: int) -> Columns:
    order = _order(columns[:num_keys])
    return tuple(columns if order is None else (column.take(order) for column in columns))


def _order(keys: Sequence[Array]) -> Integers | None:
    """Returns the indices of rows in order of keys; None if there are no keys or rows."""
    if not len(keys) or not len(keys[0]):
        return None
    packed, num_packed = _packed(keys)
    order = np.argsort(packed, kind="stable")  # most rows are already in order, which makes a stable sort fast
    if num_packed == len(keys):
        return order
    ordered = packed.take(order)
    ties = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(ties):
        is_tied = np.zeros(len(order), bool)
        is_tied[ties] = is_tied[ties + 1] = True
        rows = np.flatnonzero(is_tied)
        some = order[rows]
        order[rows] = some[np.lexsort([*(key[some] for key in reversed(keys[num_packed:])), packed[some]])]
    return order


def _packed(keys: Sequence[Array]) -> tuple[Integers, int]:
    """Packs as many of the first keys as fit into one integer per row that sorts alike; returns also their number."""
    packed, used = np.zeros(len(keys[0]), np.int64), 0
    for index, key in enumerate(keys):
        least = int(key.min())
        bits = (int(key.max()) - least).bit_length()
        if used + bits > KEY_BITS and index:
            return packed, index
        used += bits
        packed <<= bits
        packed |= key.astype(np.int64) - least
    return packed, len(keys)
