"""Files of a worker that does not see the folder of the merge: it writes them on its own host, the client fetches them.

They come in pieces, so that no trace is in memory as a whole. They are removed when the client has them, or is gone.
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
    """What work returned, and the files that it wrote."""

    folder: Path
    address: str
    """Of the worker that has them."""
    result: Any = None
    files: dict[Path, tuple[Path, int]] = field(default_factory=dict)
    """Where a file belongs -> where it is, and its length."""
    spares: set[Path] = field(default_factory=set)
    """Those that the client seldom needs, by where they belong."""


_CARRIED: ContextVar[Carried | None] = ContextVar("carried", default=None)


def carrying(work: Callable[..., Any], args: Sequence[Any], address: str, folder: str) -> Carried:
    """Does work whose files stay here for the while: dask keeps what is returned until the client lets it go.

    Args:
        work: What is done.
        args: For it.
        address: Of this worker.
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
    """Where files are written that the client will fetch; None where workers write to their place."""
    carried = _CARRIED.get()
    return None if carried is None else carried.folder


def carry(written: Path, belongs: Path, *, spare: bool = False) -> bool:
    """Has the client fetch a file, a spare one if it wants that; False where that need not be."""
    carried = _CARRIED.get()
    if carried is None:
        return False
    carried.files[belongs] = written, written.stat().st_size
    (carried.spares.add if spare else carried.spares.discard)(belongs)
    return True


def piece(path: Path, at: int) -> bytes:
    """Some bytes of a file."""
    with path.open("rb") as file:
        file.seek(at)
        return file.read(PIECE_BYTES)


def fetch(carried: Carried, read: Callable[[Path, int], bytes], *, spares: bool = True) -> None:
    """Brings files to where they belong, each whole or not at all.

    Args:
        carried: Whose.
        read: Calls `piece` on the worker.
        spares: Whether to bring those that are seldom needed.

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
