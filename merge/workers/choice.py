"""Chooses the workers that a command uses."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from distprof.merge.scan.engine import is_compiled
from distprof.merge.workers.pool import Pool, ProcessPool
from distprof.threads import is_scarce


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """What the user asked for; at most one of the two."""

    processes: int | None = None
    """Number of worker processes on this machine."""
    scheduler: str | None = None
    """Address of a dask scheduler, like tcp://host:8786."""


BUILT_IN = Workers()
"""The default: threads with the compiled engine, processes with the plain one; one per core."""


def open_pool(workers: Workers, num_items: int, folder: Path | None = None, inputs: Sequence[Path] = ()) -> Pool:
    """Starts workers, or connects to running ones.

    Args:
        workers: What the user asked for.
        num_items: Maximum number of pieces of work; no more workers than this are started.
        folder: Where workers write their results.
        inputs: Files that each worker must be able to read.

    Raises:
        DataError: There is no such scheduler, or its workers cannot do the work.
    """
    if workers.scheduler is not None:
        from distprof.merge.workers.dask_pool import DaskPool

        return DaskPool(workers.scheduler, folder, inputs)
    if workers.processes is not None:
        return ProcessPool(max(1, min(num_items, workers.processes)))
    size = max(1, min(num_items, os.cpu_count() or 1))
    if is_compiled() or is_scarce():  # the compiled engine runs without the interpreter lock
        return Pool(size)
    return ProcessPool(size)
