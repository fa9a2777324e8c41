"""Worker processes that leave signals of a terminal to their parent, and end with it, however it goes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import parent_process, resource_tracker
from multiprocessing.context import SpawnContext, SpawnProcess

from distprof.ending import end_with_parent


class WorkerProcess(SpawnProcess):
    """Gets neither SIGINT nor SIGHUP, which a terminal sends to all: each process would print where it was."""

    def start(self) -> None:
        with _blocked(signal.SIGINT, signal.SIGHUP):
            super().start()

    def run(self) -> None:
        end_with_parent(signal.SIGKILL)
        parent = parent_process()
        if parent is not None and not parent.is_alive():
            os._exit(1)
        super().run()


class WorkerContext(SpawnContext):
    """Spawns: a forked child would inherit the locks of polars' threads."""

    Process = WorkerProcess


def process_pool(workers: int) -> ProcessPoolExecutor:
    """So many of them."""
    with _blocked(signal.SIGHUP):
        resource_tracker.ensure_running()  # the process of multiprocessing that ignores the other signals by itself
    return ProcessPoolExecutor(workers, mp_context=WorkerContext())


@contextmanager
def _blocked(*signals: signal.Signals) -> Iterator[None]:
    """Signals that a process which is started in here never gets."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
