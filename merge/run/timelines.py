"""Chooses and reads the timelines of ranks, from the trace pass or else the memory pass, and reports what is lost."""

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
_GIVEN: dict[object, Workers | Pool] = {None: BUILT_IN}
"""Workers given by each `reading_in`; the last ones count. Global: commands read traces in many places and threads."""


def with_timelines(run: Run) -> Run:
    """Returns the run in which ranks without another timeline have the one with allocations."""
    return replace(run, ranks=[rank if timeline_pass(rank) == TRACE else _of_memory(rank) for rank in run.ranks])


def timeline_pass(rank: Rank) -> str:
    """Returns the pass that recorded the timeline of a rank of `with_timelines`."""
    is_memory = rank.recorded is not None and (rank.trace is None or rank.trace.path.name == MEMORY_JSON)
    return MEMORY if is_memory else TRACE


def steps_of_timeline(steps: pl.DataFrame, rank: Rank) -> pl.DataFrame:
    """Returns the rows of `STEPS` that the timeline of a rank covers."""
    return steps.filter((steps["pass"] == timeline_pass(rank)) & (steps["rank"] == rank.number))


def _of_memory(rank: Rank) -> Rank:
    found = rank.with_timeline(MEMORY_JSON)
    return rank if found.trace is None else found


def damages_of(rank: int, trace: TraceFile, damage: Damage | None, losses: Losses, num_events: int,
               num_overlong: int = 0, num_untimed: int = 0) -> Iterator[TraceDamaged]:
    """Yields what is lost of a trace's file and text, once it was read to its end; also, how many durations were cut,
    and how many device slices have no times."""
    if num_untimed:
        yield TraceDamaged(rank=rank, file=trace.name, what="times", num_events=num_untimed)
    if num_overlong:
        yield TraceDamaged(rank=rank, file=trace.name, what="durations", num_events=num_overlong)
    if damage is not None:
        yield TraceDamaged(rank=rank, file=trace.name, what="container", detail=str(damage))
    yield from losses_of(rank, trace, losses, num_events)


def losses_of(rank: int, trace: TraceFile, losses: Losses, num_events: int) -> Iterator[TraceDamaged]:
    """Yields what is lost of the text of a trace."""
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
    """Reads traces within the context with these workers, or those of a given pool; for the whole process."""
    entry = object()  # others may give equal workers, and contexts of several threads end in any order
    _GIVEN[entry] = workers
    try:
        yield
    finally:
        del _GIVEN[entry]


def for_each_rank(what: str, work: Callable[..., Result], ranks: Sequence[Rank],
                  arguments: Callable[[Rank], Sequence[Any]] = lambda _: (), *, threads: int | None = None) -> (
        Iterator[Result]):
    """Yields the result of `work` for each rank, in order, each as soon as it and all before it are done.

    Args:
        what: What is done with a rank, in a word.
        work: Called with a rank that has a trace, and its arguments; must be picklable with all of them.
        ranks: The ranks, in the order of the results.
        arguments: Returns the arguments of a rank.
        threads: How many ranks are read at once if no workers were given.

    Raises:
        DataError: There are no such workers.
    """
    workers = [*_GIVEN.values()][-1]
    items = ((f"{what} rank {rank.number}", (_anywhere(rank), *arguments(rank))) for rank in ranks)
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
    """Returns the rank with absolute paths, which are valid in any working directory."""
    trace = None if rank.trace is None else replace(rank.trace, path=rank.trace.path.absolute())
    return replace(rank, folder=rank.folder.absolute(), trace=trace)
