"""The files of a profiler."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from distprof.compat.megengine.chrome_timeline import Look, Recorded
from distprof.compat.megengine.memory_flow import memory_flow
from distprof.compat.megengine.session import Session
from distprof.files import write_whole
from distprof.process.identity import Identity
from distprof.terminal import say

CHROME_TIMELINE, MEMORY_FLOW = "chrome_timeline.json", "memory_flow.svg"
FORMATS = (CHROME_TIMELINE, MEMORY_FLOW)


class Output:
    """Writes the last region that ended."""

    def __init__(self, path: Path, formats: Sequence[str], look: Look, *, folder: bool) -> None:
        """Begins with nothing to write.

        Args:
            path: A folder, or what the names of files begin with.
            formats: Of `FORMATS`.
            look: Of the timeline.
            folder: Which of the two `path` is.
        """
        self._path, self._formats, self._look, self._folder = path, formats, look, folder
        self._pending: Session | None = None
        self._has_written = False

    def keep(self, session: Session) -> None:
        """Takes a region in the place of the last; the first is written at once, others by `write`."""
        self._pending = session
        if not self._has_written:
            self.write()

    def write(self) -> None:
        """Writes the region that is kept. Never fails: what goes wrong is said."""
        session, self._pending = self._pending, None
        if session is None:
            return
        try:
            recorded = session.recorded()
            for form in self._formats:
                path = self._file(form)
                path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(path, partial(Path.write_bytes, data=self._text(recorded, form)))
            self._has_written = True
        except Exception as error:  # noqa: BLE001 (the training goes on)
            say(f"could not write the profile to {self._path}: {error}")

    def _file(self, form: str) -> Path:
        if self._folder:
            return self._path / f"{os.getpid()}.{form}"
        identity = Identity.read()
        rank = f".rank{identity.rank}" if identity.world_size > 1 else ""
        return self._path.with_name(f"{self._path.name}{rank}.{form}")

    def _text(self, recorded: Recorded, form: str) -> bytes:
        if form == CHROME_TIMELINE:
            return recorded.chrome_timeline(self._look)
        return memory_flow(recorded.lifetimes(), recorded.start_ns, recorded.end_ns).encode()
