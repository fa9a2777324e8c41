"""Makes tables of all ranks from the files of their hosts, as frames, without creating an object per row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from distprof.arrays import Array, Integers
from distprof.contract.collective_ops import text_of
from distprof.contract.rank_summary import (
    CALL_COLUMNS,
    CELL_COLUMNS,
    NO_INTEGER,
    NO_OFFSET,
    NUMBERS,
    SEQUENCE_COLUMNS,
    TIMES,
    UNKNOWN,
    WAIT_COLUMNS,
    Arrivals,
    PackedTable,
)
from distprof.contract.tables import COLLECTIVES, Column, Table
from distprof.merge.run.summaries.joined_columns import Joined
from distprof.merge.run.summaries.summaries import Summaries

TYPES: dict[str, pl.DataType] = {"int64": pl.Int64(), "float64": pl.Float64(), "bool": pl.Boolean(),
                                 "string": pl.String(), "category": pl.String()}
FLAGS = ("asynchronous", "in_autograd")
TEXTS = ("op", "dtype", "module_path", "phase", "timed_by")
OF_GROUPS = ("group", "group_description", "group_ranks")
AT_ONCE = 64
"""Number of ranks per frame."""
_SCHEMA = {column.name: pl.List(pl.Int64()) if column.type.startswith("list") else TYPES[column.type]
           for column in COLLECTIVES.columns}
TABLES = [(name, {column: np.dtype(kind).itemsize for column, kind in kinds.items()}) for name, kinds in (
    ("cells", CELL_COLUMNS), ("sequences", SEQUENCE_COLUMNS), ("calls", CALL_COLUMNS), ("waits", WAIT_COLUMNS))]
"""Each packed table with its columns and the bytes per value."""


def frame_of(joined: Joined, table: Table, *, mp_size: int, dp_size: int) -> pl.DataFrame:
    """Returns the columns of a table, rank by rank; columns that summaries do not have are null."""
    rows = len(joined.rank)
    known = {"rank": pl.Series("rank", joined.rank, dtype=pl.Int64)}
    known |= {name: pl.repeat(size, rows, dtype=pl.Int64, eager=True) for name, size in (
        ("mp_size", mp_size), ("dp_size", dp_size))}
    return pl.DataFrame([known[column.name].alias(column.name) if column.name in known else _series(joined, column)
                         for column in table.columns])


def _series(joined: Joined, column: Column) -> pl.Series:
    values, kind = joined.columns.get(column.name), TYPES[column.type]
    if values is None:
        return pl.repeat(None, len(joined.rank), dtype=kind, eager=True).alias(column.name)
    if column.name in joined.texts:
        return _texts(column.name, values, joined.texts[column.name])
    found = pl.Series(column.name, values)
    if column.type == "bool":
        return found.cast(pl.Boolean)
    if not column.nullable:
        return found
    known = values != NO_INTEGER if column.type == "int64" else ~np.isnan(values)
    if known.all():
        return found
    return pl.select(pl.when(pl.Series(known)).then(found).alias(column.name)).to_series()


def _texts(name: str, numbers: np.typing.NDArray[np.int32], texts: Sequence[str]) -> pl.Series:
    named = pl.Series(name, texts, dtype=pl.String)
    if not len(named):
        return pl.repeat(None, len(numbers), dtype=pl.String, eager=True).alias(name)
    index = pl.Series(numbers)
    if len(numbers) and int(numbers.min()) < 0:
        index = index.to_frame("at").select(pl.when(pl.col("at") >= 0).then("at")).to_series()
    return named.gather(index)


def rows_of_ranks(summaries: Summaries, *, mp_size: int, dp_size: int) -> Iterator[tuple[list[int], pl.DataFrame]]:
    """Yields groups of ranks, including those without calls, and their rows with the columns of `COLLECTIVES`.

    `split_bytes`, how an all_to_all is split, is null.
    """
    together = _Together()
    for rank, found in summaries.arrivals():
        if found.channels and not is_whole(found):
            continue
        together.add(rank, found)
        if len(together.ranks) == AT_ONCE:
            yield together.ranks, together.frame(mp_size, dp_size)
            together = _Together()
    if together.ranks:
        yield together.ranks, together.frame(mp_size, dp_size)


class _Together:
    """Collects rows of some ranks; texts are stored as numbers."""

    def __init__(self) -> None:
        self.ranks: list[int] = []
        self._parts: list[dict[str, Any]] = []
        self._texts: dict[str, dict[str, int]] = {name: {} for name in (*TEXTS, *OF_GROUPS)}

    def add(self, rank: int, found: Arrivals) -> None:
        """Adds the calls of a rank, sorted by time of issue; calls issued at the same time keep their order."""
        self.ranks.append(rank)
        if not found.channels:
            return
        sequences, calls, cells = (_arrays(table.columns, kinds) for table, kinds in (
            (found.sequences, SEQUENCE_COLUMNS), (found.calls, CALL_COLUMNS), (found.cells, CELL_COLUMNS)))
        count = sequences["calls"][cells["sequence"]]
        place = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        first = (np.cumsum(sequences["calls"]) - sequences["calls"])[cells["sequence"]]
        call, cell = np.repeat(first, count) + place, np.repeat(np.arange(len(count)), count)
        times = _times(found, cells["base_ns"][cell])
        order = np.argsort(times["enqueue_ns"], kind="stable")
        call, cell, place = call[order], cell[order], place[order]
        channel = sequences["channel"][cells["sequence"][cell]]
        peers = np.array([NO_INTEGER if one.peer is None else one.peer for one in found.channels], np.int64)[channel]
        group = np.array([one.group for one in found.channels], np.int64)[channel]
        texts = {"group": [one.name for one in found.groups],
                 "group_description": [one.description for one in found.groups],
                 "group_ranks": [text_of(one.ranks) for one in found.groups]}
        self._parts.append({
            **{name: values[order] for name, values in times.items()},
            **{name: calls[name][call] for name in ("size_bytes", "num_elements", "tag", *FLAGS)},
            **{name: _numbers(found, name, order, cells[f"first_{name}"][cell] + place) for name in NUMBERS},
            **{name: self._numbered(name, found.calls.texts[name])[calls[name][call]] for name in TEXTS},
            **{name: self._numbered(name, of)[group] for name, of in texts.items()},
            "group_size": np.array([one.num_ranks for one in found.groups], np.int64)[group],
            "peer": np.where(peers == NO_INTEGER, calls["peer"][call], peers), "rank": np.full(len(call), rank),
            "step": cells["step"][cell].astype(np.int64)})

    def _numbered(self, name: str, texts: Sequence[str]) -> Integers:
        """Returns the numbers of texts among those of all ranks, and -1 for null at the end."""
        known = self._texts[name]
        return np.array([*(known.setdefault(text, len(known)) for text in texts), -1], np.int64)

    def frame(self, mp_size: int, dp_size: int) -> pl.DataFrame:
        """Returns the collected rows."""
        if not self._parts:
            return pl.DataFrame(schema=_SCHEMA)
        joined = {name: np.concatenate([part[name] for part in self._parts]) for name in self._parts[0]}
        series = {name: self._column(name, values) for name, values in joined.items()}
        sizes = {"mp_size": mp_size, "dp_size": dp_size}
        return pl.DataFrame(series).select(
            (pl.col(name) if name in series else pl.lit(sizes.get(name), kind).alias(name)).cast(kind)
            for name, kind in _SCHEMA.items())

    def _column(self, name: str, values: Array) -> pl.Series:
        if name in self._texts:
            return pl.Series([*self._texts[name], None], dtype=pl.String).gather(
                np.where(values < 0, len(self._texts[name]), values)).alias(name)
        unknown = values == (UNKNOWN if name in FLAGS else NO_INTEGER)
        series = pl.Series(name, values == 1 if name in FLAGS else values)
        return pl.select(pl.when(pl.Series(~unknown)).then(series).alias(name)).to_series() if unknown.any() else series


def _arrays(columns: Mapping[str, bytes], kinds: Mapping[str, str]) -> dict[str, Array]:
    return {name: np.frombuffer(columns[name], kind) for name, kind in kinds.items()}


def _times(found: Arrivals, base: Integers) -> dict[str, Integers]:
    since = {name: np.frombuffer(found.times[name], "<i4").astype(np.int64) for name in TIMES}
    since = {name: np.where(values == NO_OFFSET, NO_INTEGER, values * found.unit_ns) for name, values in since.items()}
    called = base + since["enqueue_ns"]
    times = {name: np.where(values == NO_INTEGER, NO_INTEGER, called + values) for name, values in since.items()}
    ended = (times["end_ns"] != NO_INTEGER) & (since["wait_end_ns"] != NO_INTEGER)
    return {**times, "enqueue_ns": called,
            "wait_end_ns": np.where(ended, times["end_ns"] + since["wait_end_ns"], times["wait_end_ns"])}


def _numbers(found: Arrivals, name: str, order: Integers, counted: Integers) -> Integers:
    content = found.numbers.get(name, b"")
    if not content:
        return counted
    beside = np.frombuffer(content, "<i4").astype(np.int64)[order]
    return np.where(beside == NO_OFFSET, NO_INTEGER, counted + beside)


def is_whole(found: Arrivals) -> bool:
    """Returns whether the tables have all columns and point only to rows that exist."""
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
    """Returns the number of calls in each cell."""
    number, sequence = (np.frombuffer(table.columns[name], "<i4") for table, name in (
        (found.sequences, "calls"), (found.cells, "sequence")))
    return number[sequence]
