"""Rows of `COLLECTIVES` of ranks, from the files of their hosts: what the tables of the ranks have, in their order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl

from distprof.contract.group_ranks import text_of
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
AT_ONCE = 64
"""Ranks that are in one frame."""


def rows_of_ranks(summaries: Summaries, *, mp_size: int, dp_size: int) -> Iterator[tuple[list[int], pl.DataFrame]]:
    """Some ranks at a time: those that have calls, and their rows with the columns of `COLLECTIVES`.

    How an all_to_all is split (`split_bytes`) is not there.
    """
    ranks, frames = list[int](), list[pl.DataFrame]()
    for rank, found in summaries.arrivals():
        if found.channels and not is_whole(found):
            continue
        ranks.append(rank)
        if found.channels:
            frames.append(_with_all(_rows_of(rank, found), mp_size, dp_size))
        if len(ranks) == AT_ONCE:
            yield ranks, pl.concat(frames) if frames else _EMPTY
            ranks, frames = [], []
    if ranks:
        yield ranks, pl.concat(frames) if frames else _EMPTY


_SCHEMA = {column.name: pl.List(pl.Int64()) if column.type.startswith("list") else TYPES[column.type]
           for column in COLLECTIVES.columns}
_EMPTY = pl.DataFrame(schema=_SCHEMA)


def _with_all(rows: pl.DataFrame, mp_size: int, dp_size: int) -> pl.DataFrame:
    sizes = {"mp_size": mp_size, "dp_size": dp_size}
    return rows.select((pl.col(name) if name in rows.columns else pl.lit(sizes.get(name), kind).alias(name)).cast(kind)
                       for name, kind in _SCHEMA.items())


def _rows_of(rank: int, found: Arrivals) -> pl.DataFrame:
    """In the order of issue, as far as ops were not issued at one instant."""
    sequences, calls, cells = ({name: np.frombuffer(table.columns[name], kind) for name, kind in kinds.items()}
                               for table, kinds in ((found.sequences, SEQUENCE_COLUMNS), (found.calls, CALL_COLUMNS),
                                                    (found.cells, CELL_COLUMNS)))
    count = sequences["calls"][cells["sequence"]]
    place = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
    first = (np.cumsum(sequences["calls"]) - sequences["calls"])[cells["sequence"]]
    call, cell = np.repeat(first, count) + place, np.repeat(np.arange(len(count)), count)
    times = _times(found, cells["base_ns"][cell])
    order = np.argsort(times["enqueue_ns"], kind="stable")
    call, cell, place = call[order], cell[order], place[order]
    channel = sequences["channel"][cells["sequence"][cell]]
    texts = {name: pl.Series([*found.calls.texts[name], None], dtype=pl.String)[calls[name][call]]
             for name in found.calls.texts}
    numbers = {name: _known(name, values[order]) for name, values in times.items()}
    numbers |= {name: _known(name, calls[name][call]) for name in ("size_bytes", "num_elements", "tag")}
    numbers |= {name: _known(name, _number(found, name, order) + cells[f"first_{name}"][cell] + place)
                for name in NUMBERS}
    peers = np.array([NO_INTEGER if one.peer is None else one.peer for one in found.channels], np.int64)[channel]
    flags = {name: pl.Series(calls[name][call]) for name in FLAGS}
    groups = np.array([one.group for one in found.channels], np.int64)[channel]
    return pl.DataFrame({
        **texts, **numbers, "rank": np.full(len(call), rank), "step": cells["step"][cell].astype(np.int64),
        "peer": _known("peer", np.where(peers == NO_INTEGER, calls["peer"][call], peers)),
        "group": _of_groups(groups, [one.name for one in found.groups]),
        "group_description": _of_groups(groups, [one.description for one in found.groups]),
        "group_ranks": _of_groups(groups, [text_of(one.ranks) for one in found.groups]),
        "group_size": np.array([one.num_ranks for one in found.groups], np.int64)[groups],
        **{name: pl.select(pl.when(flag != UNKNOWN).then(flag == 1)).to_series() for name, flag in flags.items()}})


def _times(found: Arrivals, base: Any) -> dict[str, Any]:
    since = {name: np.frombuffer(found.times[name], "<i4").astype(np.int64) for name in TIMES}
    since = {name: np.where(values == NO_OFFSET, NO_INTEGER, values * found.unit_ns) for name, values in since.items()}
    called = base + since["enqueue_ns"]
    times = {name: np.where(values == NO_INTEGER, NO_INTEGER, called + values) for name, values in since.items()}
    ended = (times["end_ns"] != NO_INTEGER) & (since["wait_end_ns"] != NO_INTEGER)
    return {**times, "enqueue_ns": called,
            "wait_end_ns": np.where(ended, times["end_ns"] + since["wait_end_ns"], times["wait_end_ns"])}


def _number(found: Arrivals, name: str, order: Any) -> Any:
    content = found.numbers.get(name, b"")
    return np.frombuffer(content, "<i4").astype(np.int64)[order] if content else 0


def _known(name: str, values: Any) -> pl.Series:
    series = pl.Series(name, values)
    return series if (values != NO_INTEGER).all() else pl.select(
        pl.when(pl.Series(values != NO_INTEGER)).then(series).alias(name)).to_series()


def _of_groups(numbers: Any, texts: list[str]) -> pl.Series:
    return pl.Series(texts, dtype=pl.String).gather(numbers)
