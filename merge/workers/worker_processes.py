"""Worker processes that leave terminal signals to their parent, and always end with it."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import parent_process, resource_tracker
from multiprocessing.context import SpawnContext, SpawnProcess

from distprof.ending import end_with_parent
from distprof.system import MOST_PROCESSES, WINDOWS, blocked


class WorkerProcess(SpawnProcess):
    """Blocks SIGINT and SIGHUP, which a terminal sends to all processes: each would print a traceback."""

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
    """Spawns processes: a forked child would inherit the locks of polars' threads."""

    Process = WorkerProcess


def process_pool(workers: int) -> ProcessPoolExecutor:
    """Creates a pool of this many processes, or as many as the system allows."""
    if not WINDOWS:
        with blocked("SIGHUP"):
            resource_tracker.ensure_running()  # multiprocessing's process, which itself ignores the other signals
    return ProcessPoolExecutor(min(workers, MOST_PROCESSES), mp_context=WorkerContext())
