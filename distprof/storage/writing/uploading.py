"""Writes files and folders to a URL; an object appears as a whole or not at all.

If several processes write an object together: `begin`, `put_part` in each of them, `complete` in one. An `Upload` and
its tags can be sent to other processes and hosts. S3 accepts no part below `LEAST_BYTES`, except the last, and at most
10,000 parts: smaller pieces have to be joined first.

    upload = begin("s3://bucket/run/merged/trace.json.gz")
    try:
        tags = {1: put_part(upload, 1, first_bytes), 2: put_part(upload, 2, Path("second_bytes"))}
        complete(upload, tags)
    except BaseException:
        abort(upload)
        raise
"""

from __future__ import annotations

import socket
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from distprof.errors import OutputError, StorageError, UsageError
from distprof.storage.faults import Kind, RemoteError, fault_of
from distprof.storage.kinds.schemes import backend_of
from distprof.storage.listing import LISTINGS
from distprof.storage.remote_path import RemotePath
from distprof.storage.stream import requests
from distprof.storage.writing import writable

LEAST_BYTES = 5 << 20
"""Minimum size of a part, except the last one."""
AT_ONCE = 4
WRITING = ("can these credentials write there? see docs/object-storage.md for the permissions needed; or choose "
           "another place with --out")
KEYS = ("workers write there themselves: do they have credentials and AWS_ENDPOINT_URL in their environment? see "
        "docs/cluster.md")
Moved = Callable[[int], None]
"""Called with the number of bytes that have been uploaded: of a part, or of a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """An object that is written in parts."""

    url: str
    id: str


def begin(url: str) -> Upload:
    """Begins an object of parts. Nothing of it is visible until it is complete."""
    return Upload(url=url, id=backend_of(url).begin_parts(url))


def put_part(upload: Upload, number: int, content: bytes | Path) -> str:
    """Writes a part, replacing an earlier one with its number.

    Args:
        upload: The object.
        number: From 1; parts are joined in the order of their numbers, which may have gaps.
        content: The bytes, or a file with them.

    Returns:
        The part's tag, for `complete`.
    """
    found = content.read_bytes() if isinstance(content, Path) else content
    return backend_of(upload.url).put_part(upload.url, upload.id, number, found)


def complete(upload: Upload, tags: Mapping[int, str]) -> None:
    """Joins the parts: the object appears, replacing an earlier one."""
    backend_of(upload.url).complete_parts(upload.url, upload.id, tags)
    LISTINGS.forget(upload.url)


def abort(upload: Upload) -> None:
    """Removes the parts of an object that will not be completed. Never fails: its caller already has an error."""
    with suppress(Exception):
        backend_of(upload.url).abort_parts(upload.url, upload.id)


def put_file(file: Path, url: str, moved: Moved = lambda _: None) -> None:
    """Writes a file; a large one in parallel parts, if the storage joins them."""
    size, backend = file.stat().st_size, backend_of(url)
    if size <= writable.PART_BYTES or not backend.has_parts:
        if size <= writable.PART_BYTES:
            backend.put(url, file.read_bytes())
        else:
            backend.put_whole(url, file)
        moved(size)
        return
    upload = begin(url)
    try:
        complete(upload, _parts(file, upload, writable.part_bytes(size), moved))
    except BaseException:
        abort(upload)
        raise


def _parts(file: Path, upload: Upload, part_bytes: int, moved: Moved) -> dict[int, str]:
    """Writes all parts, of which at most `AT_ONCE` are in memory."""
    coming, tags = deque[tuple[Future[str], int]](), dict[int, str]()

    def take_first() -> None:
        tag, num_bytes = coming.popleft()
        tags[len(tags) + 1] = tag.result()
        moved(num_bytes)

    with file.open("rb") as source:
        while content := source.read(part_bytes):
            coming.append((requests().submit(put_part, upload, len(tags) + len(coming) + 1, content), len(content)))
            if len(coming) == AT_ONCE:
                take_first()
    while coming:
        take_first()
    return tags


def put_written(path: RemotePath, write: Callable[[Path], object]) -> None:
    """Calls `write` with a temporary path on this machine, and uploads the result."""
    with tempfile.TemporaryDirectory(prefix="distprof-") as folder:
        temporary = Path(folder) / path.name
        write(temporary)
        with told_of(str(path)):
            put_file(temporary, path.url)
    LISTINGS.forget(path.url)


def put_folder(folder: Path, url: str, *, last: Sequence[str] = (), before_last: Callable[[], object] = lambda: None,
               moved: Moved = lambda _: None) -> None:
    """Writes all files of a folder, except hidden ones.

    Args:
        folder: The local folder.
        url: The destination.
        last: Names of files that make the folder complete: written after all others, in this order.
        before_last: Called before these.
        moved: Called with the number of bytes that have been uploaded.
    """
    found = {file.relative_to(folder).as_posix(): file for file in sorted(folder.rglob("*")) if file.is_file()}
    names = [name for name in found if name not in last and not any(part.startswith(".") for part in name.split("/"))]
    for name in names:
        put_file(found[name], f"{url}/{name}", moved)
    before_last()
    for name in last:
        if name in found:
            put_file(found[name], f"{url}/{name}", moved)
    LISTINGS.forget(url)


@contextmanager
def told_of(place: str) -> Iterator[None]:
    """Converts errors of what is written inside, at this place.

    Raises:
        OutputError: It may not be written.
        StorageError: The storage does not answer, or refuses the credentials.
    """
    try:
        yield
    except RemoteError as error:
        denied = fault_of(error).kind is Kind.DENIED
        raise OutputError(f"cannot write {place}: {error.strerror}", hint=WRITING if denied else error.hint) from error


@contextmanager
def told_by_worker(place: str) -> Iterator[None]:
    """Like `told_of` on a worker: errors name its host, because a worker has credentials of its own.

    Raises:
        OutputError: It cannot be written.
    """
    try:
        yield
    except (RemoteError, StorageError, UsageError) as error:
        reason = error.strerror if isinstance(error, RemoteError) else error.args[0]
        raise OutputError(f"cannot write {place} from a worker on {socket.gethostname()}: {reason}",
                          hint=KEYS) from error
