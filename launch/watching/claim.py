"""Which of several launchers in one directory writes `state.json`: one at a time, the next where that one is gone.

The holder rewrites a small file at each look. Nobody compares clocks: a claim is stale once others have not seen it
change for a while. Two that take over at once see each other at their next look, and the one whose name is not in the
file steps back; until then both write whole files with the same content.
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


class _Held(msgspec.Struct, kw_only=True):
    """What the file says."""

    owner: str
    """Random."""
    host: str
    pid: int
    beat: int


class Claim:
    """The right to write the state of a run.

    Args:
        run: The run directory.
        is_alone: No other launcher is there: the claim is held without a file.
    """

    def __init__(self, run: Path, *, is_alone: bool) -> None:
        self._run, self._is_alone = run, is_alone
        self._mine = _Held(owner=uuid.uuid4().hex, host=socket.gethostname(), pid=os.getpid(), beat=0)
        self._seen: tuple[str, int] | None = None
        self._seen_at = 0.0

    def holds(self) -> bool:
        """Whether this launcher writes now; renews the claim."""
        if self._is_alone:
            return True
        held = self._read()
        if held is not None and held.owner != self._mine.owner:
            if (held.owner, held.beat) != self._seen:
                self._seen, self._seen_at = (held.owner, held.beat), time.monotonic()
            if time.monotonic() - self._seen_at < STALE_S:
                return False
        self._mine.beat += 1
        with suppress(OSError):  # a full disk: it becomes stale, and who can write takes over
            write_unsynced(self._run, CLAIM_JSON, msgspec.json.encode(self._mine))
        return True

    def release(self) -> None:
        """Lets another launcher go on at once."""
        held = self._read() if not self._is_alone else None
        if held is not None and held.owner == self._mine.owner:
            with suppress(OSError):
                (self._run / WATCH / CLAIM_JSON).unlink()

    def _read(self) -> _Held | None:
        try:
            return msgspec.json.decode(read_small(self._run / WATCH / CLAIM_JSON), type=_Held)
        except (OSError, msgspec.MsgspecError):
            return None
