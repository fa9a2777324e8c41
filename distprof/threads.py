"""Threads for work that is done side by side, and none where a process has so little address space that they may die.

A thread that gets no memory while it starts is never noticed by the one that started it, which waits for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

from distprof.system import limit_of

SCARCE_BYTES = 4 << 30
"""Address space below which memory is taken to be short."""


class InlineExecutor(Executor):
    """Does what is submitted at once, in the thread that submits it."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Its result, or what it raised."""
        done = Future[Any]()
        try:
            done.set_result(work(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 (it is raised by result())
            done.set_exception(error)
        return done


def thread_pool(workers: int | None = None) -> Executor:
    """So many threads; None: as many as the machine can use."""
    return InlineExecutor() if is_scarce() else ThreadPoolExecutor(workers)


def is_scarce() -> bool:
    """True where this process may not have `SCARCE_BYTES` of address space."""
    most = limit_of("AS")
    return most is not None and most < SCARCE_BYTES
