"""Operators of the ranks of a run, read from their timelines."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

from distprof.contract.problems import Unreadable
from distprof.errors import DataError
from distprof.merge.operators.memory_changes import ChangesRead
from distprof.merge.operators.operator_rows import RankOperators
from distprof.merge.operators.rank_operators import rank_operators
from distprof.merge.operators.rank_timeline import RankTimeline, Wanted, read_timeline
from distprof.merge.operators.shape_costs import WANTED
from distprof.merge.run.run_model import Rank
from distprof.merge.run.tables import RecordedTables
from distprof.merge.run.timelines import steps_of_timeline
from distprof.threads import thread_pool

AT_ONCE = 2
"""Ranks that are read side by side: their slices are in memory together."""
MANY_ROWS = 200_000
Read = tuple[RankOperators, int]
"""Operators, and how many slices were left out."""
Take = Callable[[Rank, RankTimeline], None]


def read_operators(ranks: Sequence[Rank], tables: RecordedTables | None, *, by_shapes: bool, num_frames: int = 0,
                   take: Take = lambda *_: None) -> (
        tuple[dict[int, Read], list[Unreadable]]):
    """Reads timelines.

    Args:
        ranks: They have one each.
        tables: Of a run of ours.
        by_shapes: Takes FLOPs and bytes from the shapes in the traces.
        num_frames: Functions of Python in `stack`; 0 leaves it null.
        take: Gets each timeline that is read, from a thread of its own.

    Returns:
        What was found by rank, and timelines that cannot be read.
    """
    wanted = Wanted(python=num_frames > 0, texts=WANTED if by_shapes else ())

    def read(rank: Rank) -> Read | Unreadable:
        memory = ChangesRead()
        try:
            timeline = read_timeline(rank, memory, wanted)
        except DataError as error:
            return Unreadable(rank=rank.number, detail=str(error))
        take(rank, timeline)
        windows = None if tables is None else [
            *steps_of_timeline(tables.steps, rank).select("start_ns", "end_ns", "step").iter_rows()]
        rows = rank_operators(rank.number, timeline, windows, num_frames=num_frames,
                              changes=memory.changes(timeline.base_ns), by_shapes=by_shapes)
        return rows, timeline.num_bad

    with thread_pool(AT_ONCE) as executor:
        each = dict(zip((rank.number for rank in ranks), executor.map(read, ranks), strict=True))
    if sum(len(one[0].rows) for one in each.values() if not isinstance(one, Unreadable)) > MANY_ROWS:
        _return_memory()
    return ({number: one for number, one in each.items() if not isinstance(one, Unreadable)},
            [one for one in each.values() if isinstance(one, Unreadable)])


def _return_memory() -> None:
    """Gives the system back what timelines took: polars has an allocator of its own, which cannot use it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # musl has none
        trim(0)
