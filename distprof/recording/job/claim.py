"""Decides who creates a run directory: a launcher, else the first rank that arrives, even if several arrive at once.

If torchrun restarts a job, folders of earlier attempts are moved into a folder per attempt.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec.structs import replace

from distprof.contract import rank_json
from distprof.contract.paths import RANK_JSON, RUN_JSON, attempt_folder, rank_folder
from distprof.contract.rank_json import RankJson
from distprof.contract.run_json import RunJson
from distprof.errors import DataError
from distprof.files import told
from distprof.own import time
from distprof.process.identity import Identity
from distprof.recording.run_directory import LOCK, make_run_directory, refuse_file, run_id_in

LOCK_S = 20.0
"""Time in seconds after which a process that holds the lock is assumed to have been killed."""
LOOK_AGAIN_S = 0.01
Mark = tuple[int, int]
"""Inode and time of a lock: one that is removed and made again has another time, if not both."""


@contextlib.contextmanager
def locked(folder: Path, name: str = LOCK) -> Iterator[None]:
    """Holds a lock that works across all hosts that see the folder, which is created if it does not exist.

    A lock that stays the same for `LOCK_S` is removed. Whoever has waited for twice as long continues without a lock,
    as does a process that cannot remove it: it may be about to train.

    Raises:
        OSError: It cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    own = _taken(folder / name)
    try:
        yield
    finally:
        if own is not None:
            _remove(folder / name, own)


def _taken(lock: Path) -> Mark | None:
    """Waits for the lock; returns the mark of this process's own, or None without one."""
    held, began = None, time.monotonic()
    since = began
    while True:
        try:
            lock.mkdir()
            return _mark_of(lock)
        except FileExistsError:
            before, held, now = held, _mark_of(lock), time.monotonic()
            since = since if held == before else now
            stays = now - since > LOCK_S and held is not None and not _remove(lock, held)
            if stays or now - began > 2 * LOCK_S:
                return None
            time.sleep(LOOK_AGAIN_S)


def _remove(lock: Path, mark: Mark) -> bool:
    """Removes the lock if it has this mark; False if it cannot be removed."""
    try:
        if _mark_of(lock) == mark:
            lock.rmdir()
    except OSError as error:
        return error.errno == errno.ENOENT
    return True


def _mark_of(lock: Path) -> Mark | None:
    """Returns what differs between two locks of the same name; None if there is none."""
    try:
        found = lock.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def claim(run: Path, launch: RunJson, *, made_as: str | None, force: bool) -> None:
    """Makes sure that a directory is that of a run.

    Args:
        run: The directory.
        launch: The content for run.json.
        made_as: The id under which this process's launcher may have created it, before the ranks agreed on theirs.
        force: Replaces another run that is there.

    Raises:
        OutputError: Another run is there and `force` is False, or the directory cannot be written.
    """
    if run_id_in(run / RUN_JSON) == launch.run_id:
        return
    refuse_file(run)
    with told(run), locked(run):
        found = run_id_in(run / RUN_JSON)
        if found == launch.run_id:
            return
        if found is not None and found == made_as:
            change(run, lambda about: replace(about, run_id=launch.run_id))
        else:
            make_run_directory(run, launch, force=force)


def join_or_make(run: Path, launch: RunJson, *, elastic: bool, force: bool) -> str:
    """Returns the run id of a directory that launchers of several nodes may share; the first of them creates it.

    Args:
        run: The directory.
        launch: The content for run.json; its `launch_key` is equal on all launchers of the job.
        elastic: Whether ranks may have begun before this launcher arrived.
        force: Replaces another run that is there.

    Returns:
        The run id that the first launcher chose.

    Raises:
        OutputError: Another run is there and `force` is False, or the directory cannot be written.
    """
    with told(run), locked(run):
        about = about_run(run)
        began = any(run.glob(f"rank*/{RANK_JSON}"))
        if (about is not None and about.launch_key == launch.launch_key and about.end_ns is None
                and (elastic or not began)):
            return about.run_id
        make_run_directory(run, launch, force=force)
        return launch.run_id


def about_run(run: Path) -> RunJson | None:
    """Returns the content of a directory's run.json; None if it cannot be read."""
    try:
        return rank_json.read(run / RUN_JSON, RunJson)
    except DataError:
        return None


def change(run: Path, how: Callable[[RunJson], RunJson]) -> None:
    """Changes run.json, if it exists; the caller holds the lock.

    Raises:
        OSError: It cannot be written.
    """
    about = about_run(run)
    if about is not None and (changed := how(about)) != about:
        rank_json.write(run / RUN_JSON, changed)


EVERY = "rank[0-9]*"
"""Pattern of the folders of ranks, finished or not."""


def attempt_of(run: Path, identity: Identity, *, run_id: str, elastic: bool) -> int:
    """Returns the attempt that this process is part of.

    On each node, torchrun counts only the failures of that node, so the folder that the rank left in an earlier attempt
    counts as well.

    Args:
        run: The run directory.
        identity: Identity of this process, with the attempt as torchrun counts it.
        run_id: The run; folders of other runs do not count.
        elastic: Whether this process was started by torchrun, which may restart ranks.
    """
    if not elastic:
        return identity.attempt
    earlier = [about.attempt for about in map(_about, _folders(run, f"{rank_folder(identity.rank)}*"))
               if about is not None and about.run_id == run_id and not _lives(about, identity)]
    return max([identity.attempt, *(attempt + 1 for attempt in earlier)])


def set_aside(run: Path, *, attempt: int, identity: Identity) -> None:
    """Moves what earlier attempts left into folders of their own.

    Each rank moves its own folder, and the first rank of each host all others, except folders without rank.json that a
    rank of this attempt may just have created. Processes of an earlier attempt have ended: torchrun stops all of them
    first.

    Raises:
        OutputError: The run directory cannot be written.
    """
    with told(run):
        for folder in _folders(run, f"{rank_folder(identity.rank)}*" if identity.local_rank else EVERY):
            about = _about(folder)  # read only here: the rank may have begun anew since
            number = about.attempt if about is not None else attempt - 1
            may_be_new = _may_be_new(about, identity) if about is not None else _is_of_another(folder, identity)
            if number < attempt and not may_be_new:
                _move(folder, run / attempt_folder(number))


def _may_be_new(about: RankJson, identity: Identity) -> bool:
    """Returns whether a rank of this attempt may have created a folder.

    Processes of another host cannot be seen: a rank there that joined the job does not know yet that it is in a later
    attempt, and one that was there before moves its own folder.
    """
    if (about.host, about.boot_id) == (identity.host, identity.boot_id):
        return _lives(about, identity)
    return about.rank != identity.rank and about.world_size == identity.world_size


def _is_of_another(folder: Path, identity: Identity) -> bool:
    """Returns whether the folder belongs to another rank of the job at its current size."""
    rank = int(folder.name.removeprefix("rank").partition(".")[0])
    return rank != identity.rank and rank < identity.world_size


def _move(folder: Path, aside: Path) -> None:
    aside.mkdir(exist_ok=True)
    try:
        folder.rename(aside / folder.name)
    except OSError as error:  # the rank itself was faster, and may have begun anew
        if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
            raise


def note_world_size(run: Path, world_size: int, *, may_shrink: bool) -> None:
    """Corrects run.json if an elastic job continues with fewer ranks or a script starts more; called by rank 0.

    Raises:
        OutputError: It cannot be written.
    """
    about = about_run(run)
    known = about.world_size if about is not None else None
    if known is None or known == world_size or (known > world_size and not may_shrink):
        return
    with told(run), locked(run):
        change(run, lambda about: replace(about, world_size=world_size if about.world_size is not None else None))


def _folders(run: Path, pattern: str) -> list[Path]:
    return [folder for folder in sorted(run.glob(pattern)) if folder.is_dir()]


def _about(folder: Path) -> RankJson | None:
    try:
        return rank_json.read(folder / RANK_JSON, RankJson)
    except DataError:
        return None  # killed before it wrote the file, or damaged: merging will report it


def _lives(about: RankJson, identity: Identity) -> bool:
    """Returns whether the process that wrote a folder still runs, which can only be seen on the same host."""
    if (about.host, about.boot_id) != (identity.host, identity.boot_id) or about.pid == identity.pid:
        return False
    try:
        os.kill(about.pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
