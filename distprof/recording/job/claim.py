"""Who makes a run directory: a launcher, else the first rank that comes there. Several may come at once."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec.structs import replace

from distprof.contract import rank_json
from distprof.contract.paths import RANK_JSON, RUN_JSON
from distprof.contract.run_json import RunJson
from distprof.errors import DataError
from distprof.files import told
from distprof.recording.run_directory import LOCK, make_run_directory, refuse_file, run_id_in

LOCK_S = 20.0
"""Who holds it longer was killed."""
LOOK_AGAIN_S = 0.01


@contextlib.contextmanager
def locked(run: Path) -> Iterator[None]:
    """One process at a time, on all hosts that see the directory; it is made where it is not there.

    Raises:
        OSError: It cannot be written.
    """
    run.mkdir(parents=True, exist_ok=True)
    lock, until = run / LOCK, time.monotonic() + LOCK_S
    while True:
        try:
            lock.mkdir()
            break
        except FileExistsError:
            if time.monotonic() > until:
                break  # it was killed meanwhile; its folder is removed below
            time.sleep(LOOK_AGAIN_S)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            lock.rmdir()


def claim(run: Path, launch: RunJson, *, made_as: str | None, force: bool) -> None:
    """Makes sure that a directory is that of a run.

    Args:
        run: The directory.
        launch: What run.json is to hold.
        made_as: The id under which the launcher of this process may have made it, before the ranks agreed on theirs.
        force: Replaces another run that is there.

    Raises:
        OutputError: Another run is there and `force` is False, or it cannot be written.
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
    """Makes a directory that launchers of several nodes may share; the first of them makes it.

    Args:
        run: The directory.
        launch: What run.json is to hold; `launch_key` is equal on all launchers of the job.
        elastic: Whether ranks may have begun before this launcher came.
        force: Replaces another run that is there.

    Returns:
        The run id that the first launcher chose.

    Raises:
        OutputError: Another run is there and `force` is False, or it cannot be written.
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
    """What run.json of a directory says; None where it cannot be read."""
    try:
        return rank_json.read(run / RUN_JSON, RunJson)
    except DataError:
        return None


def change(run: Path, how: Callable[[RunJson], RunJson]) -> None:
    """Changes run.json, where there is one; who calls this holds the lock.

    Raises:
        OSError: It cannot be written.
    """
    about = about_run(run)
    if about is not None and (changed := how(about)) != about:
        rank_json.write(run / RUN_JSON, changed)
