"""`watch/state.json`, as the watcher of a job writes it and others read it; what `summary.json` keeps of it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from distprof.contract.watch_state import FORMAT, STATE_JSON, WATCH, WatchState
from distprof.errors import DataError, FormatError
from distprof.files import MOST_LINES_BYTES, json_text, read_small, write_whole

FRESH_S = 10.0
"""A running job's state is written every 2 s: one that is older has lost its watcher."""
KEPT = ("num_steps", "first_watched", "elapsed_ns", "step_ns", "findings", "notes")
"""Fields of `WatchState` that say something of the job as a whole."""


def read_state(run: Path) -> WatchState | None:
    """What the watcher wrote last; None where there is nothing.

    Raises:
        DataError: It cannot be read.
        FormatError: It is of a newer distprof.
    """
    path = run / WATCH / STATE_JSON
    try:
        content = read_small(path, MOST_LINES_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    return decoded(content, os.fspath(path) if isinstance(path, os.PathLike) else str(path))


def decoded(content: bytes, place: str) -> WatchState:
    """A state from its JSON.

    Raises:
        DataError: It is damaged.
        FormatError: It is of a newer distprof.
    """
    try:
        about = msgspec.json.decode(content)
        if isinstance(about, dict) and isinstance(about.get("format"), int) and about["format"] > FORMAT:
            raise FormatError(f"{place} has format {about['format']}, and this distprof reads up to {FORMAT}",
                              hint="pip install --upgrade distprof")
        return msgspec.convert(about, WatchState)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DataError(f"{place} is damaged: {error}") from error


def is_fresh(state: WatchState) -> bool:
    """Whether it is the last word: of a job that is over, or of a watcher that is there."""
    return not state.running or abs(time.time_ns() - state.time_ns) < FRESH_S * 1e9


def data_of(state: WatchState | None) -> dict[str, Any] | None:
    """`KEPT` as plain data, for `summary.json`."""
    return None if state is None else {name: msgspec.to_builtins(getattr(state, name)) for name in KEPT}


def state_of(data: Mapping[str, Any] | None) -> WatchState | None:
    """The other way round; without ranks."""
    return None if data is None else msgspec.convert(
        {"format": FORMAT, "run_id": "", "time_ns": 0, "running": False, "world_size": 0, "ranks": [], **data},
        WatchState)


def write_state(run: Path, state: WatchState) -> None:
    """Replaces it. Not synced: it is worth nothing after a crash, and a sync would make the job's own writes wait.

    Raises:
        OSError: It cannot be written, or the run directory was removed, which is not made again.
    """
    write_unsynced(run, STATE_JSON, json_text(state))


def write_unsynced(run: Path, name: str, content: bytes) -> None:
    """Replaces a file in `watch/`, which is made where it is not there.

    Raises:
        OSError: As above.
    """
    folder = run / WATCH
    if not folder.is_dir():
        folder.mkdir()  # without parents: the run directory may be gone
    write_whole(folder / name, lambda temporary: temporary.write_bytes(content), syncs=False)
