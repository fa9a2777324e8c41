"""Which workers a command uses."""

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
    """What a user asks for; at most one of the two."""

    processes: int | None = None
    """Worker processes on this machine."""
    scheduler: str | None = None
    """Address of a scheduler of dask, like tcp://host:8786."""


BUILT_IN = Workers()
"""Threads with the compiled engine, processes with the plain one: as many as there are cores."""


def open_pool(workers: Workers, num_items: int, folder: Path | None = None, inputs: Sequence[Path] = ()) -> Pool:
    """Starts workers, or connects to those that run.

    Args:
        workers: Which.
        num_items: How much work there is at most: no more workers are started.
        folder: Where workers leave what they make.
        inputs: Files that each worker has to read.

    Raises:
        DataError: There is no such scheduler, or its workers cannot do the work.
    """
    if workers.scheduler is not None:
        from distprof.merge.workers.dask_pool import DaskPool

        return DaskPool(workers.scheduler, folder, inputs)
    if workers.processes is not None:
        return ProcessPool(max(1, min(num_items, workers.processes)))
    size = max(1, min(num_items, os.cpu_count() or 1))
    if is_compiled() or is_scarce():  # that one runs without the interpreter's lock
        return Pool(size)
    return ProcessPool(size)
