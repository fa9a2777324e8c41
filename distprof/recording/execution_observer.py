"""torch's observer of execution traces: which calls were made, with which tensors, and what lies in what."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from isal import igzip
from torch.profiler import ExecutionTraceObserver

from distprof.contract.paths import EXECUTION_TRACE_JSON, PLAIN_EXECUTION_TRACE_JSON
from distprof.files import told, write_whole


class ExecutionObserver:
    """Writes an execution trace; a process can have one observer at a time."""

    def __init__(self) -> None:
        self._observer: Any = None
        self._path: Path | None = None

    def start(self, folder: Path) -> bool:
        """Begins to write to a folder; False where the script has an observer of its own."""
        observer = ExecutionTraceObserver()
        observer.register_callback(str(folder / PLAIN_EXECUTION_TRACE_JSON))
        if not observer.is_registered:
            return False
        self._observer, self._path = observer, folder / PLAIN_EXECUTION_TRACE_JSON
        observer.start()
        return True

    def stop(self) -> None:
        """Ends the file."""
        if self._observer is not None:
            self._observer.unregister_callback()
            self._observer = None

    def discard(self) -> None:
        """Removes the file."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            self._path = None

    def compress(self, folder: Path) -> bool:
        """Gives the file its place in a folder; False where there is none.

        Raises:
            OutputError: It cannot be written.
        """
        plain = folder / PLAIN_EXECUTION_TRACE_JSON
        if self._path is None or not plain.is_file():
            return False
        with told(plain):
            text = plain.read_bytes()
        target = folder / EXECUTION_TRACE_JSON
        with told(target):
            write_whole(target, lambda temporary: temporary.write_bytes(igzip.compress(text, 1)))
        with suppress(OSError):
            plain.unlink()
        self._path = None
        return True
