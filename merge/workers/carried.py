"""Files of workers that do not see the folder of the merge: written on the worker's host and fetched by the client.

Files are sent in pieces, so that no trace is in memory as a whole. They are removed once the client has fetched them or
has gone.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PIECE_BYTES = 8 << 20


@dataclass(slots=True, kw_only=True, weakref_slot=True)
class Carried:
    """What a piece of work returned, and the files that it wrote on the worker."""

    folder: Path
    address: str
    """Address of the worker that has the files."""
    result: Any = None
    files: dict[Path, tuple[Path, int]] = field(default_factory=dict)
    """Final path of each file -> its path on the worker, and its length."""
    spares: set[Path] = field(default_factory=set)
    """Final paths of the files that the client seldom needs."""


_CARRIED: ContextVar[Carried | None] = ContextVar("carried", default=None)


def carrying(work: Callable[..., Any], args: Sequence[Any], address: str, folder: str) -> Carried:
    """Does work whose files stay on this worker: dask keeps the returned object until the client releases it.

    Args:
        work: The function.
        args: Its arguments.
        address: Address of this worker.
        folder: A folder of this worker.
    """
    carried = Carried(folder=Path(tempfile.mkdtemp(prefix="distprof-", dir=folder)), address=address)
    weakref.finalize(carried, shutil.rmtree, carried.folder, ignore_errors=True)
    token = _CARRIED.set(carried)
    try:
        carried.result = work(*args)
    finally:
        _CARRIED.reset(token)
    return carried


def carried_in() -> Path | None:
    """Returns where to write files that the client will fetch; None if workers write to the final path."""
    carried = _CARRIED.get()
    return None if carried is None else carried.folder


def carry(written: Path, belongs: Path, *, spare: bool = False) -> bool:
    """Registers a file for the client to fetch, a spare one only if wanted; returns False if this is not needed."""
    carried = _CARRIED.get()
    if carried is None:
        return False
    carried.files[belongs] = written, written.stat().st_size
    (carried.spares.add if spare else carried.spares.discard)(belongs)
    return True


def piece(path: Path, at: int) -> bytes:
    """Returns up to `PIECE_BYTES` of a file."""
    with path.open("rb") as file:
        file.seek(at)
        return file.read(PIECE_BYTES)


def fetch(carried: Carried, read: Callable[[Path, int], bytes], *, spares: bool = True) -> None:
    """Fetches files to their final paths, each completely or not at all.

    Args:
        carried: What a worker returned.
        read: Calls `piece` on the worker.
        spares: Whether to fetch the files that are seldom needed.

    Raises:
        OSError: The worker is gone.
    """
    for belongs, (path, size) in carried.files.items():
        if belongs in carried.spares and not spares:
            continue
        temporary = belongs.with_name(f".{belongs.name}.fetched")
        with temporary.open("wb") as file:
            while file.tell() < size:
                some = read(path, file.tell())
                if not some:
                    raise FileNotFoundError(path)
                file.write(some)
        temporary.replace(belongs)
