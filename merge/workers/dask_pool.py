"""Workers of a dask cluster. Needs the extra `cluster`."""

from __future__ import annotations

import pickle
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, wait
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from distprof.errors import DataError
from distprof.merge.workers.carried import Carried, carrying, fetch, piece
from distprof.merge.workers.dask_client import (
    CLOSING_S,
    KilledWorker,
    be_quiet,
    connected,
    gathered,
    get_worker,
    gone,
    idle,
    patience_s,
    without_workers,
)
from distprof.merge.workers.pool import MOST_LOSSES, Pool, Task
from distprof.merge.workers.work_place import WHOLE, WorkPlace, differing, lacking_here, not_shared_here

Result = TypeVar("Result")
BATCH_BYTES = 8 << 20
"""Compressed bytes of short files that form one piece of work; takes half a second."""
SHARES = 8
"""Minimum number of pieces of work per thread, so that all threads finish at about the same time."""
FEW = 16
LOOK_S = 1.0
"""Interval at which a waiting client checks that it is still connected and that a worker is running, in s."""


def _batch(inputs: Sequence[Path], size: int) -> int:
    """Returns how many short files form one piece of work: handing one over takes milliseconds of three processes."""
    some = inputs[::max(1, len(inputs) // FEW)]
    mean = sum(path.stat().st_size for path in some) / max(1, len(some))
    return max(1, min(len(inputs) // (SHARES * size), int(BATCH_BYTES / max(1.0, mean))))


class DaskPool(Pool):
    """Connects to a scheduler, and reconnects if the connection is lost; unfinished work is then done again.

    If a worker is lost, the scheduler gives its work to another one.
    """

    lost = (CancelledError,)
    remedy = "see the log of the scheduler"

    def __init__(self, address: str, folder: Path | None, inputs: Sequence[Path]) -> None:
        """Connects, and checks the workers.

        Args:
            address: Address of the scheduler.
            folder: Where workers write their results.
            inputs: Files that they read, one per piece of work.

        Raises:
            DataError: There is no scheduler or worker, or a worker has other versions or does not see the files.
            UsageError: The address is invalid.
        """
        self._address = address
        self._place = WorkPlace.of(folder, inputs)
        be_quiet()
        super().__init__(1)
        self.batch = _batch(inputs, self.size)

    def _start(self) -> None:
        self._client = connected(self._address)
        try:
            self._check()
            self.size = max(1, sum(self._client.nthreads().values()))
        except (OSError, TimeoutError, CancelledError) as error:
            self._stop()
            raise gone(self._address, str(error) or type(error).__name__) from error
        except BaseException:
            self._stop()
            raise

    def _check(self) -> None:
        """Checks the present workers; workers that join later check themselves."""
        different = next(differing(self._client.get_versions(packages=[*WHOLE])), None)
        if different is not None:
            raise DataError(f"workers of {self._address} have different versions: {different}",
                            hint="install the same packages on the workers as here: pip freeze")
        for address, reason in self._asked(lacking_here):
            if reason is not None:
                raise _blind(address, reason)
        self.shares_folder = self.shares_folder and not any(reason for _, reason in self._asked(not_shared_here))

    def _asked(self, look: Callable[[WorkPlace], str | None]) -> Iterator[tuple[str, str | None]]:
        """Yields what each worker finds; skips workers that are lost meanwhile."""
        for address, found in self._client.run(look, self._place, on_error="return").items():
            if not isinstance(found, OSError):
                yield address, str(found) if isinstance(found, Exception) else found

    def _hand(self, name: str, work: Callable[..., Result], args: Sequence[Any]) -> Future[Result]:
        if not self._is_connected():
            raise CancelledError
        payload = pickle.dumps((self._place, self.shares_folder, work, args), pickle.HIGHEST_PROTOCOL)
        kind, _, rest = name.partition(" ")  # the dashboard has one bar per text before the hyphen
        try:
            remote = self._client.submit(perform, payload, key=f"{kind}-{rest} {uuid.uuid4().hex[:8]}", pure=False)
        except Exception as error:
            if self._is_connected():
                raise
            raise CancelledError from error
        return gathered(self._client, remote)

    def _is_connected(self) -> bool:
        return self._client.status in ("running", "connecting")

    def _waited(self, task: Task[Any]) -> Any:
        """Waits for a task, and returns what the worker returned.

        Raises:
            CancelledError: The connection is lost; tasks submitted meanwhile may never finish in dask.
            DataError: There has been no running worker for too long, or every worker had too little memory.
        """
        begin = time.monotonic()
        while not wait([task.future], LOOK_S).done:
            if not self._is_connected():
                raise CancelledError
            begin = begin if idle(self._client) else time.monotonic()
            if time.monotonic() - begin > patience_s():
                raise without_workers(self._client, self._address)
        return task.future.result()

    def _taken(self, task: Task[Result]) -> Result:
        """Returns a task's result; fetches the files that it wrote if workers do not see their final paths."""
        for left in range(MOST_LOSSES, -1, -1):
            found = self._waited(task)
            if not isinstance(found, Carried):
                break
            try:
                fetch(found, partial(self._piece, found.address), spares=self.wants_spares())
            except OSError as error:  # the worker is gone, and its files with it
                if not left:
                    raise DataError(f"cannot fetch files from worker {found.address}: {error}",
                                    hint=self.remedy) from error
                self._resubmit(task)
                continue
            found = found.result
            break
        result: Result = found
        return result

    def _piece(self, address: str, path: Path, at: int) -> bytes:
        if address not in self._client.nthreads():  # if asked for a piece, dask would try to connect for half a minute
            raise ConnectionError("the worker ended")
        found: bytes = self._client.run(piece, path, at, workers=[address])[address]
        return found

    def _told(self, task: Task[Any], error: BaseException) -> BaseException:
        if isinstance(error, KilledWorker):
            return DataError(f"every worker of {self._address} that ran this task died: {task.name}",
                             hint="out of memory? use dask worker --memory-limit, or fewer threads per worker")
        if isinstance(error, (ImportError, AttributeError, pickle.UnpicklingError)):
            return DataError(f"workers of {self._address} do not have the same distprof as here: {error}",
                             hint="install the same packages on the workers as here")
        return error

    def _stop(self) -> None:
        with suppress(Exception):  # the scheduler may be gone
            self._client.close(timeout=CLOSING_S)

    def close(self) -> None:
        """Drops all work; what no worker has begun is never done."""
        self._stop()

    def abandon(self) -> None:
        self._stop()


def perform(payload: bytes) -> Any:
    """Does a piece of work on a worker.

    Raises:
        DataError: The worker does not see the client's files.
    """
    place, shares_folder, work, args = pickle.loads(payload)
    worker = get_worker()
    lacking = lacking_here(place) or (not_shared_here(place) if shares_folder else None)
    if lacking is not None:
        raise _blind(worker.address, lacking)
    return work(*args) if shares_folder else carrying(work, args, worker.address, worker.local_directory)


def _blind(address: str, lacking: str) -> DataError:
    return DataError(f"worker {address} does not see the files of the client: {lacking}",
                     hint="put the run and --out on a file system mounted at the same path on all workers")
