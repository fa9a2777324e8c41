"""Whether the stacks of all ranks are asked for: `watch/request.json` of the run says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from distprof.contract.watch_state import REQUEST_JSON, WATCH, WindowRequest
from distprof.files import read_small

LOOK_S = 2.0
"""Between two looks at that file."""


class StacksAsked:
    """Looks at the request; what was asked before this rank looked for the first time does not count."""

    def __init__(self, folder: Callable[[], Path | None]) -> None:
        """Remembers nothing yet.

        Args:
            folder: Of the rank, in the run directory; None while there is none.
        """
        self._folder = folder
        self._seen: tuple[int, int] | None = None
        self._count: int | None = None

    def is_new(self) -> bool:
        """True once for each time that they are asked for; a file that cannot be read asks for nothing."""
        folder = self._folder()
        if folder is None:
            return False
        path = folder.parent / WATCH / REQUEST_JSON
        try:
            stat = path.stat()
            if (stat.st_mtime_ns, stat.st_ino) == self._seen:
                return False
            self._seen = stat.st_mtime_ns, stat.st_ino
            count = msgspec.json.decode(read_small(path), type=WindowRequest).stacks
        except FileNotFoundError:
            self._count = self._count or 0
            return False
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return False
        before, self._count = self._count, count
        return before is not None and count > before
