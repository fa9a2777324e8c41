"""The folder of a merge on remote storage: written locally, then uploaded as a whole, by one client at a time."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from distprof.contract.paths import SUMMARY_JSON
from distprof.ending import note
from distprof.errors import OutputError
from distprof.files import told
from distprof.merge.writing.merge_folder import DAY_S, OURS, earlier, others
from distprof.storage.kinds.schemes import backend_of
from distprof.storage.listing import LISTINGS
from distprof.storage.remote_path import RemotePath
from distprof.storage.writing.by_workers import ByWorkers
from distprof.storage.writing.claims import NAME, Claim
from distprof.storage.writing.uploading import put_folder, told_of
from distprof.system import is_ours

PREFIX = "distprof-merge-"


def free_elsewhere(merged: RemotePath, paths: Sequence[Path], *, force: bool) -> RemotePath:
    """Returns the path if a merge may be written there. Only an earlier merge is ever replaced.

    Files without a summary are not a merge but left by an upload that was killed, because the summary is uploaded last.

    Raises:
        OutputError: There are other files, or there is a merge and `force` is not set.
    """
    if merged in paths or any(merged in path.parents for path in paths):
        raise OutputError(f"the output folder {merged} must not be the folder of the traces",
                          hint="choose another --out")
    names = {path.name for path in merged.iterdir()} if merged.is_dir() else set[str]()
    if merged.is_file() or any(name not in OURS and not name.startswith(".") for name in names):
        raise others(merged)
    if SUMMARY_JSON in names and not force:
        raise earlier(merged)
    return merged


@contextmanager
def uploaded_whole(merged: RemotePath, paths: Sequence[Path], *, force: bool,
                   by_workers: ByWorkers | None = None) -> Iterator[Path]:
    """Yields a temporary local folder to write to; uploads it if all goes well.

    Args:
        merged: The destination.
        paths: Paths of the traces.
        force: Replace an earlier merge.
        by_workers: What workers upload themselves.

    Raises:
        OutputError: It cannot be written, or another client is writing there or has done so meanwhile.
        StorageError: The storage does not answer, or refuses the credentials.
    """
    with Claim(merged.url, str(merged)) as claim:
        _remove_old(merged)
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        note(folder)
        try:
            with told(folder):
                yield folder
            claim.check()
            _look_again(merged, paths, force=force)
            with told_of(str(merged)):
                _replace(merged, folder, by_workers)
        finally:
            if by_workers is not None:
                by_workers.abort()
            shutil.rmtree(folder, ignore_errors=True)


def _remove_old(merged: RemotePath) -> None:
    """Removes what killed merges left, locally and on the storage."""
    with suppress(OSError):  # needs an additional permission, and nobody reads incomplete uploads
        backend_of(merged.url).abort_left(merged.url)
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            if is_ours(left.stat()) and time.time() - left.stat().st_mtime > DAY_S:
                shutil.rmtree(left, ignore_errors=True)


def _look_again(merged: RemotePath, paths: Sequence[Path], *, force: bool) -> None:
    LISTINGS.forget(merged.url)
    free_elsewhere(merged, paths, force=force)


def _replace(merged: RemotePath, folder: Path, by_workers: ByWorkers | None) -> None:
    """Replaces the objects. From the first removal to the last upload, no merge is there."""
    backend = backend_of(merged.url)
    before = [name for name in LISTINGS.of(merged.url)[0].below(LISTINGS.of(merged.url)[1]) if name != NAME]
    if SUMMARY_JSON in before:
        backend.remove([f"{merged.url}/{SUMMARY_JSON}"])
    there = {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}
    if by_workers is not None:
        there |= by_workers.names
    backend.remove([f"{merged.url}/{name}" for name in before if name not in there and name != SUMMARY_JSON])
    put_folder(folder, merged.url, last=(SUMMARY_JSON,),
               before_last=by_workers.complete if by_workers is not None else lambda: None)
