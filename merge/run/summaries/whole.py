"""Whether the tables of a rank agree with each other; others are damaged."""

from __future__ import annotations

from typing import Any

import numpy as np

from distprof.contract.rank_summary import (
    CALL_COLUMNS,
    CELL_COLUMNS,
    NUMBERS,
    SEQUENCE_COLUMNS,
    TIMES,
    WAIT_COLUMNS,
    Arrivals,
    PackedTable,
)

TABLES = [(name, {column: np.dtype(kind).itemsize for column, kind in kinds.items()}) for name, kinds in (
    ("cells", CELL_COLUMNS), ("sequences", SEQUENCE_COLUMNS), ("calls", CALL_COLUMNS), ("waits", WAIT_COLUMNS))]
"""Columns of each table, with the bytes of a value."""


def is_whole(found: Arrivals) -> bool:
    """False where a table lacks a column, or points to what is not there."""
    try:
        return _agrees(found)
    except (KeyError, ValueError, IndexError):
        return False


def _agrees(found: Arrivals) -> bool:
    if any(channel.group >= len(found.groups) for channel in found.channels):
        return False
    for name, sizes in TABLES:
        table: PackedTable = getattr(found, name)
        if any(len(table.columns[column]) != table.rows * size for column, size in sizes.items()):
            return False
    sequence, channel = (np.frombuffer(table.columns[name], "<i4") for table, name in (
        (found.cells, "sequence"), (found.sequences, "channel")))
    for numbers, limit in ((sequence, found.sequences.rows), (channel, len(found.channels))):
        if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < limit:
            return False
    number = np.frombuffer(found.sequences.columns["calls"], "<i4")
    total = int(calls_of_cells(found).sum())
    return (int(number.min(initial=0)) >= 0 and int(number.sum()) == found.calls.rows
            and all(len(found.times[name]) == 4 * total for name in TIMES)
            and all(len(found.numbers.get(name, b"")) in (0, 4 * total) for name in NUMBERS))


def calls_of_cells(found: Arrivals) -> Any:
    """How many calls each cell has."""
    number, sequence = (np.frombuffer(table.columns[name], "<i4") for table, name in (
        (found.sequences, "calls"), (found.cells, "sequence")))
    return number[sequence]
