"""The execution pass: what ran and what it depended on, with a timeline of the same steps and their communication.

torch's execution trace observer records calls, their tensors, and how calls are nested.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch.distributed as dist
from isal import igzip
from torch.profiler import ExecutionTraceObserver

from distprof.contract.paths import EXECUTION_TIMELINE_JSON, EXECUTION_TRACE_JSON, PLAIN_EXECUTION_TRACE_JSON
from distprof.contract.tables import EXECUTION_COLLECTIVES, TableRow
from distprof.files import told, write_whole
from distprof.model.quiet import quiet_log
from distprof.process.live_objects import live_instances
from distprof.recording.communication.backend_times import time_calls
from distprof.recording.communication.collective_call import CollectiveCall, collective_rows
from distprof.recording.passes.protocol import Pass, PassContext
from distprof.recording.run_directory import RankFolder
from distprof.recording.tracing.slice_names import real_names, strict
from distprof.recording.tracing.timeline import Timeline

_REGISTER = ExecutionTraceObserver.register_callback


class ExecutionObserver:
    """Writes an execution trace.

    A process can have one observer. torch (at least up to 2.15) confuses a second one with the first, and crashes when
    both have been removed: an observer of the script prevents ours from starting, or ends it.
    """

    def __init__(self, on_foreign: Callable[[], None]) -> None:
        """Stores a callback for when the script has an observer; ours does not run from then on."""
        self._on_foreign = on_foreign
        self._observer: Any = None
        self._path: Path | None = None

    def start(self, folder: Path) -> None:
        """Starts writing to a folder."""
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
        """Writes the finished, compressed file to a folder; False if there is none.

        Raises:
            OutputError: The file cannot be written.
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


class ExecutionSteps(Pass):
    """Steps under the profiler and torch's execution trace observer.

    The observer makes steps several times as long, so their communication has a table of its own.
    """

    name = "execution"
    slowed_by_compilation = True
    lost_elsewhere = "the execution trace is lost: only the thread that started it can end it"

    def __init__(self, context: PassContext) -> None:
        self._timeline = Timeline(context.scopes, context.sessions, context.note, context.tags)
        self._collectives = context.collectives
        self._folder: Callable[[], Path | None] = context.folder
        self._observer = ExecutionObserver(lambda: context.note(
            "the script records its own execution trace, so distprof records none"))
        self._first = 0
        self._calls: list[CollectiveCall] = []

    def start(self) -> None:
        self._first = len(self._collectives.calls)
        self._timeline.start()
        if dist.is_available():
            self._collectives.start(timeline=self._timeline.recording)
        folder = self._folder()
        if folder is not None and self._timeline.recording:
            self._observer.start(folder)

    def stop(self) -> None:
        self._observer.stop()
        self._collectives.stop()
        self._timeline.stop()
        self._calls += self._collectives.calls[self._first:]
        del self._collectives.calls[self._first:]

    def closure_begins(self) -> None:
        self._timeline.closure_begins()

    def closure_ends(self) -> None:
        self._timeline.closure_ends()

    def write(self, folder: RankFolder, steps: Sequence[TableRow], *, ended: bool, elsewhere: bool) -> None:
        if not ended or elsewhere or self._timeline.is_written:
            return
        own = [step for step in steps if step["pass"] == self.name]
        if not own:  # the job ended during the first of them
            self._observer.discard()
            return
        found = self._timeline.write(folder, EXECUTION_TIMELINE_JSON, steps=own)
        if found.num_events:
            folder.files[EXECUTION_TIMELINE_JSON] = found.num_events
            time_calls(self._calls, found.backend_events)
            mine = {step["step"] for step in own}
            folder.write_rows(EXECUTION_COLLECTIVES, collective_rows(
                call for call in self._calls if call.step in mine))
        if self._observer.compress(folder.path):
            folder.files[EXECUTION_TRACE_JSON] = 0
