"""Reads operators of the ranks of a run from their timelines.

All calls that share operator, shapes, module, phase and step form one row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from distprof.arrays import Array
from distprof.contract.problems import Unreadable
from distprof.errors import DataError
from distprof.freed_memory import give_back
from distprof.merge.operators.rank_share import KEYS, SCHEMA, Kept, RankOperators, RankShare, ShareMaker
from distprof.merge.operators.shapes import UNKNOWN, WANTED
from distprof.merge.operators.timeline.captured_graphs import KERNEL_NAME, Capture, read_captures
from distprof.merge.operators.timeline.grouped_calls import COSTS, MEMORY, grouped_calls
from distprof.merge.operators.timeline.memory_changes import ChangesRead, MemoryChanges
from distprof.merge.operators.timeline.rank_timeline import RankTimeline, Wanted, read_timeline
from distprof.merge.run.run_model import Rank
from distprof.merge.run.timelines import for_each_rank


def rank_operators(rank: int, timeline: RankTimeline, windows: Sequence[tuple[int, int, int]] | None, *,
                   num_frames: int = 0, changes: MemoryChanges | None = None, by_shapes: bool = False,
                   captures: Sequence[Capture] = ()) -> RankOperators:
    """Returns the table of a rank.

    Args:
        rank: Its number.
        timeline: Its slices.
        windows: Start, end and number of its steps; None: the trace marks them, or is a single step.
        num_frames: Functions in `stack`; if above 0, the timeline must have Python calls.
        changes: Changes of memory; if None or empty, `MEMORY` is null.
        by_shapes: Takes FLOPs and bytes from the shapes in the trace; rows with and without them are kept apart. The
            timeline must have the texts of `shapes.WANTED`.
        captures: Captures of graphs in other traces.
    """
    calls = grouped_calls(timeline, windows, num_frames=num_frames, changes=changes, by_shapes=by_shapes,
                          captures=captures)
    words = {name: _word(calls.columns[name], known, KEYS[name]) for name, known in calls.words.items()}
    frame = pl.DataFrame({"rank": np.full(calls.num_rows, rank), **calls.columns, **words})
    return RankOperators(by_shapes=calls.by_shapes, replays=calls.replays, rows=frame.with_columns(
        pl.when(pl.col("step") >= 0).then("step").alias("step"),
        *(pl.when(pl.col(name) != UNKNOWN).then(name).alias(name) for name in (*MEMORY, *COSTS)),
    ).select(pl.col(name).cast(kind) for name, kind in SCHEMA.items()))


def _word(numbers: Array, known: Sequence[str | None], kind: pl.DataType) -> pl.Series:
    """Returns texts in place of numbers, null for -1."""
    words = pl.Series([*known, None], dtype=pl.String).cast(kind)
    return words.gather(np.where(numbers < 0, len(known), numbers))


AT_ONCE = 2
"""Ranks read concurrently: their slices are in memory together."""
MANY_ROWS = 200_000
Beside = Callable[[Rank], Callable[[RankTimeline], Any]]
"""Returns, for a rank, a picklable function that is also applied to its timeline."""
Take = Callable[[Rank, Any], None]


def read_operators(makers: Sequence[ShareMaker], *, by_shapes: bool, num_frames: int = 0,
                   captured: Sequence[Path] = (), beside: Beside | None = None, take: Take = lambda *_: None) -> (
        Iterator[tuple[RankShare, Kept] | Unreadable]):
    """Reads timelines.

    Args:
        makers: One for each rank; all have a timeline.
        by_shapes: Takes FLOPs and bytes from the shapes in the traces.
        num_frames: Python functions in `stack`; 0 leaves it null.
        captured: Traces of captures of graphs.
        beside: What else is done with timelines, where they are read.
        take: Called with the rank and what that returned.

    Yields:
        What was found for each rank, or that its timeline cannot be read.

    Raises:
        DataError: A trace of captures cannot be read, or has none.
    """
    for path in captured:
        if not read_captures(path):
            raise DataError(f"{path} has no capture of a graph",
                            hint="--captured takes a trace that was recorded while a CUDA graph was captured")
    ranks, of_rank = [maker.rank for maker in makers], {maker.rank.number: maker for maker in makers}

    def arguments(rank: Rank) -> Sequence[Any]:
        return of_rank[rank.number], by_shapes, num_frames, captured, None if beside is None else beside(rank)

    found, num_rows = for_each_rank("read", _read, ranks, arguments, threads=AT_ONCE), 0
    for rank, (one, other) in zip(ranks, found, strict=True):
        if not isinstance(one, Unreadable):
            num_rows += one[0].num_rows
            if beside is not None:
                take(rank, other)
        yield one
    if num_rows > MANY_ROWS:
        give_back()  # polars has its own allocator, which cannot use the memory that timelines took


def _read(rank: Rank, maker: ShareMaker, by_shapes: bool, num_frames: int,  # noqa: FBT001 (it is mapped)
          captured: Sequence[Path], beside: Callable[[RankTimeline], Any] | None) -> (
        tuple[tuple[RankShare, Kept] | Unreadable, Any]):
    texts = (KERNEL_NAME, *(WANTED if by_shapes else ()))
    memory, wanted = ChangesRead(), Wanted(python=num_frames > 0, modules=True, texts=texts)
    try:
        timeline = read_timeline(rank, memory, wanted)
    except DataError as error:
        return Unreadable(rank=rank.number, detail=str(error)), None
    other = None if beside is None else beside(timeline)
    rows = rank_operators(rank.number, timeline, maker.windows, num_frames=num_frames,
                          changes=memory.changes(timeline.base_ns), by_shapes=by_shapes,
                          captures=[one for path in captured for one in read_captures(path)])
    share, kept = maker.of(rows, timeline.num_bad)
    return (replace(share, problems=timeline.problems), kept), other
