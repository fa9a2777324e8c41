"""The timelines of ranks: that of the trace pass, else that of the memory pass; read one by one; and what is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from distprof.contract.passes import MEMORY, TRACE
from distprof.contract.paths import MEMORY_JSON
from distprof.contract.problems import TraceDamaged
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.scan.chrome_file import Losses
from distprof.merge.scan.gunzip import Damage
from distprof.merge.scan.trace_file import TraceFile
from distprof.merge.workers.choice import BUILT_IN, Workers, open_pool
from distprof.merge.workers.pool import Pool

if TYPE_CHECKING:
    import polars as pl

Result = TypeVar("Result")
_GIVEN: list[Workers | Pool] = [BUILT_IN]
"""The last one counts. A command reads traces in many places, some of them in threads of their own."""


def with_timelines(run: Run) -> Run:
    """The run, where ranks that have no other timeline have the one with allocations."""
    return replace(run, ranks=[rank if timeline_pass(rank) == TRACE else _of_memory(rank) for rank in run.ranks])


def timeline_pass(rank: Rank) -> str:
    """The pass that recorded the timeline of a rank of `with_timelines`."""
    is_memory = rank.recorded is not None and (rank.trace is None or rank.trace.path.name == MEMORY_JSON)
    return MEMORY if is_memory else TRACE


def steps_of_timeline(steps: pl.DataFrame, rank: Rank) -> pl.DataFrame:
    """Rows of `STEPS` that the timeline of a rank covers."""
    return steps.filter((steps["pass"] == timeline_pass(rank)) & (steps["rank"] == rank.number))


def _of_memory(rank: Rank) -> Rank:
    found = rank.with_timeline(MEMORY_JSON)
    return rank if found.trace is None else found


def damages_of(rank: int, trace: TraceFile, damage: Damage | None, losses: Losses, num_events: int,
               num_overlong: int = 0, num_untimed: int = 0) -> Iterator[TraceDamaged]:
    """What is lost of the file and of its text, once it was read to its end; how many durations were cut, and how many
    slices of devices have no times."""
    if num_untimed:
        yield TraceDamaged(rank=rank, file=trace.name, what="times", num_events=num_untimed)
    if num_overlong:
        yield TraceDamaged(rank=rank, file=trace.name, what="durations", num_events=num_overlong)
    if damage is not None:
        yield TraceDamaged(rank=rank, file=trace.name, what="container", detail=str(damage))
    yield from losses_of(rank, trace, losses, num_events)


def losses_of(rank: int, trace: TraceFile, losses: Losses, num_events: int) -> Iterator[TraceDamaged]:
    """What is lost of the text of a trace."""
    if losses.is_cut:
        yield TraceDamaged(rank=rank, file=trace.name, what="end", lost_bytes=losses.lost_bytes + losses.lost_key_bytes,
                           num_events=num_events)
    elif losses.damaged_events:
        yield TraceDamaged(rank=rank, file=trace.name, what="places", places=losses.damaged_events,
                           lost_bytes=losses.lost_bytes)
    if losses.has_second:
        yield TraceDamaged(rank=rank, file=trace.name, what="container", detail="holds another trace behind this one, "
                           "which is not read: write each into a file of its own")
    if losses.damaged_keys or (losses.lost_key_bytes and not losses.is_cut):
        yield TraceDamaged(rank=rank, file=trace.name, what="keys", lost_bytes=losses.lost_key_bytes,
                           detail=", ".join(losses.damaged_keys))


@contextmanager
def reading_in(workers: Workers | Pool) -> Iterator[None]:
    """What is read in here is read by these workers, or by those that a pool has already; of the whole process."""
    _GIVEN.append(workers)
    try:
        yield
    finally:
        _GIVEN.remove(workers)


def for_each_rank(what: str, work: Callable[..., Result], ranks: Sequence[Rank],
                  arguments: Callable[[Rank], Sequence[Any]] = lambda _: (), *, threads: int | None = None) -> (
        Iterator[Result]):
    """What work returns for each rank, as soon as it has and those before have.

    Args:
        what: What is done with a rank, a word.
        work: Gets a rank with a trace, and its arguments; all of it can be pickled.
        ranks: In this order.
        arguments: Those of a rank.
        threads: How many ranks are read at once where no workers were given.

    Raises:
        DataError: There are no such workers.
    """
    workers, items = _GIVEN[-1], ((f"{what} rank {rank.number}", (_anywhere(rank), *arguments(rank))) for rank in ranks)
    if isinstance(workers, Pool):
        yield from workers.in_order(work, items)
        return
    traced = [rank.trace.path for rank in ranks if rank.trace is not None]
    pool = Pool(threads) if workers == BUILT_IN and threads is not None else open_pool(
        workers, len(ranks), None, traced)
    try:
        yield from pool.in_order(work, items)
    finally:
        pool.close()


def _anywhere(rank: Rank) -> Rank:
    """With paths that mean the same in another folder."""
    trace = None if rank.trace is None else replace(rank.trace, path=rank.trace.path.absolute())
    return replace(rank, folder=rank.folder.absolute(), trace=trace)
