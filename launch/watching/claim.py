"""Decides which of several launchers that share a run directory writes `state.json`: one, or another if it is gone.

The holder rewrites a small file at each look. Clocks are not compared: a claim is stale if others have not seen it
change for `STALE_S`. If two launchers take over at once, the one whose name is not in the file steps back at its next
look; until then, both write whole files with the same content.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from contextlib import suppress
from pathlib import Path

import msgspec

from distprof.contract.watch_state import WATCH, write_unsynced
from distprof.files import read_small

CLAIM_JSON = "watcher.json"
STALE_S = 10.0
"""A claim is stale if its file has not changed for this long."""


class _Held(msgspec.Struct, kw_only=True):
    """The content of the claim file."""

    owner: str
    """Random id of the launcher."""
    host: str
    pid: int
    beat: int
    """Number of renewals."""


class Claim:
    """The right to write the state of a run.

    Args:
        run: The run directory.
        is_alone: Whether there is no other launcher: the claim is then held without a file.
    """

    def __init__(self, run: Path, *, is_alone: bool) -> None:
        self._run, self._is_alone = run, is_alone
        self._mine = _Held(owner=uuid.uuid4().hex, host=socket.gethostname(), pid=os.getpid(), beat=0)
        self._seen: tuple[str, int] | None = None
        self._seen_at = 0.0

    def holds(self) -> bool:
        """Returns whether this launcher is to write the state; if so, renews the claim."""
        if self._is_alone:
            return True
        held = self._read()
        if held is not None and held.owner != self._mine.owner:
            if (held.owner, held.beat) != self._seen:
                self._seen, self._seen_at = (held.owner, held.beat), time.monotonic()
            if time.monotonic() - self._seen_at < STALE_S:
                return False
        self._mine.beat += 1
        try:
            write_unsynced(self._run, CLAIM_JSON, msgspec.json.encode(self._mine))
        except OSError:  # a full disk: the claim becomes stale, and a launcher that can write takes over
            return held is None or held.owner == self._mine.owner
        return True

    def release(self) -> None:
        """Gives up the claim, so that another launcher can take over at once."""
        held = self._read() if not self._is_alone else None
        if held is not None and held.owner == self._mine.owner:
            with suppress(OSError):
                (self._run / WATCH / CLAIM_JSON).unlink()

    def _read(self) -> _Held | None:
        try:
            return msgspec.json.decode(read_small(self._run / WATCH / CLAIM_JSON), type=_Held)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
