"""Clocks, threads, locks and files of Python itself, whatever a script replaces them with.

Tests freeze time, and libraries for green threads replace everything that starts a thread or waits for one. If distprof
used the script's objects, a wait could last forever because the clock stands still, and a test that counts calls would
count ours. Therefore `time` and `_thread` are separate module objects, and `open` is kept where nobody mocks it.
"""

from __future__ import annotations

import importlib
import importlib.util
from importlib.machinery import BuiltinImporter
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import _thread as _thread
    import time as time
else:
    def _made_anew(name: str) -> Any:
        """Returns a new module object of a built-in module, separate from the one that scripts import."""
        try:
            spec = BuiltinImporter.find_spec(name)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        except Exception:  # noqa: BLE001 (in this Python it is not built in, or it can only be created once)
            return importlib.import_module(name)
        return module

    time, _thread = _made_anew("time"), _made_anew("_thread")


open_file = open


def text_of(path: Path) -> str:
    """Returns the contents of a small file, such as one in /proc.

    Raises:
        OSError: The file cannot be read.
    """
    with open_file(path, "rb") as file:
        return file.read().decode(errors="replace")


def lock() -> Any:
    """Like `threading.Lock`."""
    return _thread.allocate_lock()


def reentrant_lock() -> Any:
    """Like `threading.RLock`."""
    return _thread.RLock()


class Event:
    """Like `threading.Event`, but can never be cleared."""

    def __init__(self) -> None:
        self._pending = lock()
        self._pending.acquire()

    def is_set(self) -> bool:
        """True once `set` was called."""
        return not self._pending.locked()

    def set(self) -> None:
        """Sets the event and wakes all waiting threads."""
        try:
            self._pending.release()
        except RuntimeError:  # already set
            return

    def wait(self, seconds: float | None = None) -> bool:
        """Waits until the event is set, for at most `seconds` (None: without limit); returns whether it is set."""
        if not self._pending.acquire(timeout=-1 if seconds is None else max(seconds, 0)):
            return False
        self.set()
        return True
