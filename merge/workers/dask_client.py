"""Connects to a dask scheduler, and describes what is wrong with a cluster. No other module imports dask."""

from __future__ import annotations

import logging
import warnings
from concurrent.futures import CancelledError, Future
from functools import lru_cache
from typing import Any

from distprof.errors import DataError, UsageError

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import dask
        import distributed
        from dask.utils import parse_timedelta
        from distributed import get_worker
        from distributed.comm import get_address_host_port
        from distributed.scheduler import KilledWorker
except ImportError as error:
    raise UsageError("--scheduler needs dask.distributed",
                     hint="pip install 'distprof[cluster]'") from error

__all__ = ["CLOSING_S", "KilledWorker", "be_quiet", "connected", "gathered", "get_worker", "gone", "idle", "patience_s",
           "without_workers"]
CLOSING_S = 5.0


@lru_cache(maxsize=1)
def be_quiet() -> None:
    """Silences the loggers and warnings of dask: failures are reported as a one-line error."""
    for name in [*logging.root.manager.loggerDict]:  # dask sets levels one by one
        if name.partition(".")[0] in ("distributed", "tornado", "asyncio"):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    warnings.filterwarnings("ignore", module=r"distributed|dask|contextlib")


def gone(address: str, found: str) -> DataError:
    return DataError(f"no dask scheduler at {address}: {found}",
                     hint="start one with `dask scheduler`; its first lines show the address")


def idle(client: Any) -> str:
    """Returns why no worker is running; empty if one is, or if the scheduler does not answer."""
    try:
        states = [one["status"] for one in client.sync(client.scheduler.identity)["workers"].values()]
    except (OSError, CancelledError, AttributeError):  # a closed client has no scheduler
        return ""
    if "running" in states:
        return ""
    return f"{len(states)} paused for lack of memory" if states else "none"


def without_workers(client: object, address: str) -> DataError:
    return DataError(f"no usable workers at {address} within {patience_s():g} s: {idle(client) or 'none'}",
                     hint=f"start some with `dask worker {address}`; paused ones need a higher --memory-limit")


def patience_s() -> float:
    """Returns dask's timeout for connecting, in s; killed workers are restarted in less time."""
    return float(parse_timedelta(dask.config.get("distributed.comm.timeouts.connect")))


def connected(address: str) -> Any:
    """Returns a client as soon as the scheduler has a worker.

    Raises:
        DataError: There is no scheduler, or it has no worker in time.
        UsageError: The address is invalid.
    """
    patience = patience_s()
    try:
        if not address.startswith(("inproc:", "ucx:")):
            _check_port(address)  # dask would retry an address without a port until the timeout
        client = distributed.Client(address, timeout=patience, set_as_default=False, name="distprof")
    except (OSError, TimeoutError) as error:
        raise gone(address, f"none in {patience:g} s") from error
    except (ValueError, TypeError) as error:
        raise UsageError(f"--scheduler {address!r} is not an address: {error}",
                         hint="--scheduler tcp://host:8786") from error
    try:
        client.wait_for_workers(1, timeout=patience)
    except TimeoutError as error:
        told = without_workers(client, address)
        client.close(timeout=CLOSING_S)
        raise told from error
    except OSError as error:  # the scheduler has just ended
        client.close(timeout=CLOSING_S)
        raise gone(address, str(error)) from error
    return client


def _check_port(address: str) -> None:
    port = get_address_host_port(address)[1]
    if not 0 < int(port) < 1 << 16:
        raise ValueError(f"{port} is not a valid port number")


class _Gathered(Future[Any]):
    """A worker's result. The worker keeps its copy as long as this object exists."""

    def __init__(self, remote: object) -> None:
        super().__init__()
        self.remote = remote


def gathered(client: Any, remote: Any) -> _Gathered:
    """Fetches a worker's result as soon as it is available.

    dask's own executor does the same, but never finishes if the scheduler is lost during a fetch, and fails with its
    own error if the worker is lost.
    """
    found = _Gathered(remote)

    async def gather() -> None:
        try:
            found.set_result(await client.gather(remote, asynchronous=True))
        except Exception as error:  # noqa: BLE001 - it is raised where the result is taken
            found.set_exception(error if remote.status == "error" else CancelledError(str(error)))

    client.loop.add_callback(gather)
    return found
