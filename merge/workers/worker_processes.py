"""Worker processes that leave signals of a terminal to their parent, and end with it, however it goes."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import parent_process, resource_tracker
from multiprocessing.context import SpawnContext, SpawnProcess

from distprof.ending import end_with_parent
from distprof.system import MOST_PROCESSES, WINDOWS, blocked


class WorkerProcess(SpawnProcess):
    """Gets neither SIGINT nor SIGHUP, which a terminal sends to all: each process would print where it was."""

    def start(self) -> None:
        with blocked("SIGINT", "SIGHUP"):
            super().start()

    def run(self) -> None:
        end_with_parent("SIGKILL")
        parent = parent_process()
        if parent is not None and not parent.is_alive():
            os._exit(1)
        super().run()


class WorkerContext(SpawnContext):
    """Spawns: a forked child would inherit the locks of polars' threads."""

    Process = WorkerProcess


def process_pool(workers: int) -> ProcessPoolExecutor:
    """So many of them, as far as the system allows."""
    if not WINDOWS:
        with blocked("SIGHUP"):
            resource_tracker.ensure_running()  # the process of multiprocessing that ignores the other signals by itself
    return ProcessPoolExecutor(min(workers, MOST_PROCESSES), mp_context=WorkerContext())
