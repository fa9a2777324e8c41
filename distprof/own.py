"""Clocks, threads, locks and files that stay as Python made them, whatever a script puts in the place of its own.

Tests let time stand still, and libraries for green threads exchange all that starts or waits for one: whoever waits for
a clock that stands waits for ever, and what is counted would be ours. So `time` and `_thread` are modules of their own,
and files are opened where nobody puts a mock.
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
        """A built-in module of Python beside the one that scripts import."""
        try:
            spec = BuiltinImporter.find_spec(name)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        except Exception:  # noqa: BLE001 (a Python in which it is not built in, or is made once)
            return importlib.import_module(name)
        return module

    time, _thread = _made_anew("time"), _made_anew("_thread")


open_file = open


def text_of(path: Path) -> str:
    """What is in a small file of the system.

    Raises:
        OSError: It cannot be read.
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
    """Happens once: like `threading.Event`."""

    def __init__(self) -> None:
        self._pending = lock()
        self._pending.acquire()

    def is_set(self) -> bool:
        """True once it happened."""
        return not self._pending.locked()

    def set(self) -> None:
        """It happens now."""
        try:
            self._pending.release()
        except RuntimeError:  # it has already
            return

    def wait(self, seconds: float | None = None) -> bool:
        """Waits for it, or so long; true if it happened."""
        if not self._pending.acquire(timeout=-1 if seconds is None else max(seconds, 0)):
            return False
        self.set()
        return True
