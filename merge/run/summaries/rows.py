"""Rows of `COLLECTIVES` of ranks, from the files of their hosts: what the tables of the ranks have, in their order."""

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
    Arrivals,
)
from distprof.contract.tables import COLLECTIVES
from distprof.merge.run.summaries.frames import TYPES
from distprof.merge.run.summaries.summaries import Summaries
from distprof.merge.run.summaries.whole import is_whole

UNKNOWN = 2
FLAGS = ("asynchronous", "in_autograd")
TEXTS = ("op", "dtype", "module_path", "phase", "timed_by")
OF_GROUPS = ("group", "group_description", "group_ranks")
AT_ONCE = 64
"""Ranks that are in one frame."""


def rows_of_ranks(summaries: Summaries, *, mp_size: int, dp_size: int) -> Iterator[tuple[list[int], pl.DataFrame]]:
    """Some ranks at a time: those that have calls, and their rows with the columns of `COLLECTIVES`.

    How an all_to_all is split (`split_bytes`) is not there.
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


_SCHEMA = {column.name: pl.List(pl.Int64()) if column.type.startswith("list") else TYPES[column.type]
           for column in COLLECTIVES.columns}


class _Together:
    """Rows of some ranks; texts are numbers."""

    def __init__(self) -> None:
        self.ranks: list[int] = []
        self._parts: list[dict[str, Any]] = []
        self._texts: dict[str, dict[str, int]] = {name: {} for name in (*TEXTS, *OF_GROUPS)}

    def add(self, rank: int, found: Arrivals) -> None:
        """The calls of a rank in the order of issue, as far as they were not issued at one instant."""
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
        """Numbers of texts among those of all ranks; the last is for null."""
        known = self._texts[name]
        return np.array([*(known.setdefault(text, len(known)) for text in texts), -1], np.int64)

    def frame(self, mp_size: int, dp_size: int) -> pl.DataFrame:
        """The rows of all."""
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
