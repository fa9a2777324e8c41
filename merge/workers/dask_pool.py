"""Workers of a cluster of dask. Needs the extra `cluster`; nothing else here imports dask."""

from __future__ import annotations

import logging
import pickle
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, wait
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

from distprof.errors import DataError, UsageError
from distprof.merge.workers.carried import Carried, carrying, fetch, piece
from distprof.merge.workers.installed import WHOLE, differing
from distprof.merge.workers.pool import MOST_LOSSES, Pool, Task
from distprof.merge.workers.work_place import WorkPlace, lacking_here, not_shared_here

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import distributed
except ImportError as error:
    raise UsageError("expected dask.distributed for --scheduler, found none",
                     hint="pip install 'distprof[cluster]'") from error

Result = TypeVar("Result")
CLOSING_S = 5.0
BATCH_BYTES = 8 << 20
"""Of compressed files that are one piece of work: half a second of it."""
SHARES = 8
"""Pieces of work for each thread at least, so that all end at about the same time."""
FEW = 16
LOOK_S = 1.0
"""How often a client that waits looks whether it is still connected, and whether any worker works."""


def _batch(inputs: Sequence[Path], size: int) -> int:
    """How many short files are one piece of work: to hand it over takes milliseconds of three processes."""
    some = inputs[::max(1, len(inputs) // FEW)]
    mean = sum(path.stat().st_size for path in some) / max(1, len(some))
    return max(1, min(len(inputs) // (SHARES * size), int(BATCH_BYTES / max(1.0, mean))))


class DaskPool(Pool):
    """Connects to a scheduler, and again where it is lost; work that was not done by then is done again.

    Where a worker is lost, the scheduler gives its work to another one.
    """

    lost = (CancelledError,)
    remedy = "see the log of the scheduler"

    def __init__(self, address: str, folder: Path | None, inputs: Sequence[Path]) -> None:
        """Connects, and looks at what workers have.

        Args:
            address: Of the scheduler.
            folder: Where workers leave what they make.
            inputs: Files that they read: an item of work for each.

        Raises:
            DataError: There is no scheduler or worker, or one has other versions, or does not see the files.
            UsageError: It is no address.
        """
        self._address = address
        self._place = WorkPlace.of(folder, inputs)
        _be_quiet()
        super().__init__(1)
        self.batch = _batch(inputs, self.size)

    def _start(self) -> None:
        self._client = _connected(self._address)
        try:
            self._check()
        except (OSError, TimeoutError, CancelledError) as error:
            self._stop()
            raise _gone(self._address, str(error) or type(error).__name__) from error
        except BaseException:
            self._stop()
            raise
        self.size = max(1, sum(self._client.nthreads().values()))

    def _check(self) -> None:
        """Looks at workers that are there; those that come later look for themselves."""
        different = next(differing(self._client.get_versions(packages=[*WHOLE])), None)
        if different is not None:
            raise DataError(f"expected the same versions on all workers of {self._address}, found {different}",
                            hint="install on workers what is installed here: pip freeze")
        for address, reason in self._asked(lacking_here):
            if reason is not None:
                raise _blind(address, reason)
        self.shares_folder = self.shares_folder and not any(reason for _, reason in self._asked(not_shared_here))

    def _asked(self, look: Callable[[WorkPlace], str | None]) -> Iterator[tuple[str, str | None]]:
        """What each worker finds; nothing of one that is lost meanwhile."""
        for address, found in self._client.run(look, self._place, on_error="return").items():
            if not isinstance(found, OSError):
                yield address, str(found) if isinstance(found, Exception) else found

    def _hand(self, name: str, work: Callable[..., Result], args: Sequence[Any]) -> Future[Result]:
        if not self._is_connected():
            raise CancelledError
        payload = pickle.dumps((self._place, self.shares_folder, work, args), pickle.HIGHEST_PROTOCOL)
        kind, _, rest = name.partition(" ")  # the dashboard has a bar for what is before the hyphen
        try:
            remote = self._client.submit(perform, payload, key=f"{kind}-{rest} {uuid.uuid4().hex[:8]}", pure=False)
        except Exception as error:
            if self._is_connected():
                raise
            raise CancelledError from error
        return _gathered(self._client, remote)

    def _is_connected(self) -> bool:
        return self._client.status in ("running", "connecting")

    def _waited(self, task: Task[Any]) -> Any:
        """What the worker returned.

        Raises:
            CancelledError: The connection is lost; dask may leave what is submitted meanwhile without an end.
            DataError: For long no worker has been there, or each had too little memory.
        """
        begin = time.monotonic()
        while not wait([task.future], LOOK_S).done:
            if not self._is_connected():
                raise CancelledError
            begin = begin if _idle(self._client) else time.monotonic()
            if time.monotonic() - begin > _patience_s():
                raise _without_workers(self._client, self._address)
        return task.future.result()

    def _taken(self, task: Task[Result]) -> Result:
        """With the files that were written beside, where workers do not see where they belong."""
        for left in range(MOST_LOSSES, -1, -1):
            found = self._waited(task)
            if not isinstance(found, Carried):
                break
            try:
                fetch(found, partial(self._piece, found.address), spares=self.wants_spares())
            except OSError as error:  # the worker is gone, and its files with it
                if not left:
                    raise DataError(f"expected files from worker {found.address}, cannot fetch them: {error}",
                                    hint=self.remedy) from error
                self._resubmit(task)
                continue
            found = found.result
            break
        result: Result = found
        return result

    def _piece(self, address: str, path: Path, at: int) -> bytes:
        if address not in self._client.nthreads():  # asked for a piece, dask would try to connect for half a minute
            raise ConnectionError("the worker ended")
        found: bytes = self._client.run(piece, path, at, workers=[address])[address]
        return found

    def _told(self, task: Task[Any], error: BaseException) -> BaseException:
        if isinstance(error, distributed.scheduler.KilledWorker):
            return DataError(f"expected workers of {self._address} to stay, found that all that had to {task.name} "
                             "ended", hint="out of memory? dask worker --memory-limit, or fewer threads each")
        if isinstance(error, (ImportError, AttributeError, pickle.UnpicklingError)):
            return DataError(f"expected distprof on all workers of {self._address} as it is here, found: {error}",
                             hint="install on workers what is installed here")
        return error

    def _stop(self) -> None:
        with suppress(Exception):  # the scheduler may be gone
            self._client.close(timeout=CLOSING_S)

    def close(self) -> None:
        """Lets go of all work; what workers do not have yet is never done."""
        self._stop()

    def abandon(self) -> None:
        self._stop()


class _Gathered(Future[Any]):
    """What a worker returns, which keeps it while this is kept."""

    def __init__(self, remote: Any) -> None:
        super().__init__()
        self.remote = remote


def _gathered(client: Any, remote: Any) -> _Gathered:
    """Fetches what a worker returns as soon as it is there.

    The executor of dask does the same, but never ends where the scheduler is lost while something is fetched, and
    ends with an error of its own where the worker is.
    """
    found = _Gathered(remote)

    async def gather() -> None:
        try:
            found.set_result(await client.gather(remote, asynchronous=True))
        except Exception as error:  # noqa: BLE001 - it is raised where the result is taken
            found.set_exception(error if remote.status == "error" else CancelledError(str(error)))

    client.loop.add_callback(gather)
    return found


def perform(payload: bytes) -> Any:
    """Does work on a worker.

    Raises:
        DataError: The worker does not see what the client sees.
    """
    place, shares_folder, work, args = pickle.loads(payload)
    worker = distributed.get_worker()
    lacking = lacking_here(place) or (not_shared_here(place) if shares_folder else None)
    if lacking is not None:
        raise _blind(worker.address, lacking)
    return work(*args) if shares_folder else carrying(work, args, worker.address, worker.local_directory)


def _blind(address: str, lacking: str) -> DataError:
    return DataError(f"expected worker {address} to see the files of the client, found {lacking}",
                     hint="put the run and --out on a file system that all workers have at the same path")


@lru_cache(maxsize=1)
def _be_quiet() -> None:
    """What goes wrong is said by an error, in one line."""
    for name in [*logging.root.manager.loggerDict]:  # dask sets levels one by one
        if name.partition(".")[0] in ("distributed", "tornado", "asyncio"):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    warnings.filterwarnings("ignore", module=r"distributed|dask|contextlib")


def _gone(address: str, found: str) -> DataError:
    return DataError(f"expected a scheduler of dask at {address}, found {found}",
                     hint="start it: dask scheduler; its first lines say the address")


def _idle(client: Any) -> str:
    """Why nobody works; empty where somebody does, or the scheduler does not answer."""
    try:
        states = [one["status"] for one in client.scheduler_info()["workers"].values()]
    except (OSError, CancelledError):
        return ""
    if "running" in states:
        return ""
    return f"{len(states)} paused for lack of memory" if states else "none"


def _without_workers(client: Any, address: str) -> DataError:
    return DataError(f"expected workers at {address}, found {_idle(client) or 'none'} in {_patience_s():g} s",
                     hint=f"start some: dask worker {address}; paused ones need more --memory-limit")


def _patience_s() -> float:
    """What dask is set to allow for connecting; workers that are killed are back in less."""
    import dask
    from dask.utils import parse_timedelta

    return float(parse_timedelta(dask.config.get("distributed.comm.timeouts.connect")))


def _connected(address: str) -> Any:
    """A client, once there is a scheduler with a worker.

    Raises:
        DataError: There is none in time.
        UsageError: It is no address.
    """
    patience_s = _patience_s()
    try:
        client = distributed.Client(address, timeout=patience_s, set_as_default=False, name="distprof")
    except (OSError, TimeoutError) as error:
        raise _gone(address, f"none in {patience_s:g} s") from error
    except (ValueError, TypeError) as error:
        raise UsageError(f"expected an address for --scheduler, found {address!r}: {error}",
                         hint="--scheduler tcp://host:8786") from error
    try:
        client.wait_for_workers(1, timeout=patience_s)
    except TimeoutError as error:
        told = _without_workers(client, address)
        client.close(timeout=CLOSING_S)
        raise told from error
    return client
