"""`watch/state.json` of a run directory: written whole, never synced; `distprof.contract.written_state` reads it."""

from __future__ import annotations

from pathlib import Path

from distprof.contract.watch_state import STATE_JSON, WATCH, WatchState
from distprof.files import json_text, write_whole


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
