"""Reads the traces of ranks one by one, in the workers that a command was given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from distprof.merge.run.run_model import Rank
from distprof.merge.workers.choice import BUILT_IN, Workers, open_pool
from distprof.merge.workers.pool import Pool

Result = TypeVar("Result")
_GIVEN: list[Workers | Pool] = [BUILT_IN]
"""The last one counts. A command reads traces in many places, some of them in threads of their own."""


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
