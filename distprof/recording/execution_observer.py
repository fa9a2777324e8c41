"""torch's observer of execution traces: which calls were made, with which tensors, and what lies in what."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from isal import igzip
from torch.profiler import ExecutionTraceObserver

from distprof.contract.paths import EXECUTION_TRACE_JSON, PLAIN_EXECUTION_TRACE_JSON
from distprof.files import told, write_whole
from distprof.model.quiet import quiet_log
from distprof.process.live_objects import live_instances
from distprof.recording.tracing.slice_names import real_names, strict

_REGISTER = ExecutionTraceObserver.register_callback


class ExecutionObserver:
    """Writes an execution trace.

    A process can have one observer. torch (up to 2.15 at least) takes a second one for the first, and crashes when both
    have been removed: an observer of the script keeps ours from starting, or ends it.
    """

    def __init__(self, on_foreign: Callable[[], None]) -> None:
        """Prepares; `on_foreign` is called where the script has an observer, and there is none of ours from then on."""
        self._on_foreign = on_foreign
        self._observer: Any = None
        self._path: Path | None = None

    def start(self, folder: Path) -> None:
        """Begins to write to a folder."""
        if any(one.is_registered for one in live_instances(ExecutionTraceObserver)):
            self._on_foreign()
            return
        self._path = folder / PLAIN_EXECUTION_TRACE_JSON
        self._observer = ExecutionTraceObserver().register_callback(str(self._path))
        with quiet_log():
            self._observer.start()
        ExecutionTraceObserver.register_callback = self._making_way(_REGISTER)  # type: ignore[method-assign]

    def stop(self) -> None:
        """Ends the file."""
        if self._observer is not None:
            ExecutionTraceObserver.register_callback = _REGISTER  # type: ignore[method-assign]
            with quiet_log():
                self._observer.unregister_callback()
            self._observer = None

    def _making_way(self, register: Callable[..., Any]) -> Callable[..., Any]:
        def making_way(*args: Any, **kwargs: Any) -> Any:
            self.stop()
            self.discard()
            self._on_foreign()
            return register(*args, **kwargs)

        return making_way

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
            text = strict(real_names(plain.read_bytes()))
        target = folder / EXECUTION_TRACE_JSON
        with told(target):
            write_whole(target, lambda temporary: temporary.write_bytes(igzip.compress(text, 1)))
        with suppress(OSError):
            plain.unlink()
        self._path = None
        return True
