"""Operators of the ranks of a run, read from their timelines."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from distprof.contract.problems import Unreadable
from distprof.errors import DataError
from distprof.merge.operators.memory_changes import ChangesRead
from distprof.merge.operators.operator_rows import RankOperators
from distprof.merge.operators.rank_operators import rank_operators
from distprof.merge.operators.rank_timeline import RankTimeline, Wanted, read_timeline
from distprof.merge.operators.shape_costs import WANTED
from distprof.merge.run.each_rank import for_each_rank
from distprof.merge.run.run_model import Rank
from distprof.merge.run.tables import RecordedTables
from distprof.merge.run.timelines import steps_of_timeline

AT_ONCE = 2
"""Ranks that are read side by side: their slices are in memory together."""
MANY_ROWS = 200_000
Read = tuple[RankOperators, int]
"""Operators, and how many slices were left out."""
Beside = Callable[[Rank], Callable[[RankTimeline], Any]]
"""Makes, for a rank, what is also done with its timeline; that can be pickled."""
Take = Callable[[Rank, Any], None]


def read_operators(ranks: Sequence[Rank], tables: RecordedTables | None, *, by_shapes: bool, num_frames: int = 0,
                   beside: Beside | None = None, take: Take = lambda *_: None) -> (
        tuple[dict[int, Read], list[Unreadable]]):
    """Reads timelines.

    Args:
        ranks: They have one each.
        tables: Of a run of ours.
        by_shapes: Takes FLOPs and bytes from the shapes in the traces.
        num_frames: Functions of Python in `stack`; 0 leaves it null.
        beside: What else is done with timelines, where they are read.
        take: Gets what that returned.

    Returns:
        What was found by rank, and timelines that cannot be read.
    """
    def arguments(rank: Rank) -> Sequence[Any]:
        windows = None if tables is None else [
            *steps_of_timeline(tables.steps, rank).select("start_ns", "end_ns", "step").iter_rows()]
        return windows, by_shapes, num_frames, None if beside is None else beside(rank)

    each, unreadable = dict[int, Read](), list[Unreadable]()
    found = for_each_rank("read", _read, ranks, arguments, threads=AT_ONCE)
    for rank, (one, other) in zip(ranks, found, strict=True):
        if isinstance(one, Unreadable):
            unreadable.append(one)
            continue
        each[rank.number] = one
        if beside is not None:
            take(rank, other)
    if sum(len(one[0].rows) for one in each.values()) > MANY_ROWS:
        _return_memory()
    return each, unreadable


def _read(rank: Rank, windows: Sequence[tuple[int, int, int]] | None, by_shapes: bool,  # noqa: FBT001 (it is mapped)
          num_frames: int,
          beside: Callable[[RankTimeline], Any] | None) -> tuple[Read | Unreadable, Any]:
    memory, wanted = ChangesRead(), Wanted(python=num_frames > 0, texts=WANTED if by_shapes else ())
    try:
        timeline = read_timeline(rank, memory, wanted)
    except DataError as error:
        return Unreadable(rank=rank.number, detail=str(error)), None
    other = None if beside is None else beside(timeline)
    rows = rank_operators(rank.number, timeline, windows, num_frames=num_frames,
                          changes=memory.changes(timeline.base_ns), by_shapes=by_shapes)
    return (rows, timeline.num_bad), other


def _return_memory() -> None:
    """Gives the system back what timelines took: polars has an allocator of its own, which cannot use it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # musl has none
        trim(0)
