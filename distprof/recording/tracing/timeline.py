"""One session of torch.profiler with a slice per module call, and the Chrome trace that it produces."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch
from isal import igzip
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity

from distprof.contract.tables import CLOSURE_SLICE, EVALUATION_SLICE, TableRow
from distprof.errors import OutputError
from distprof.files import told, write_whole
from distprof.model.quiet import QuietAbout
from distprof.model.scopes import Frame, ModuleScopes
from distprof.process.accelerators import CPU, device_type
from distprof.recording.run_directory import RankFolder
from distprof.recording.tracing.profiler_sessions import ProfilerSessions, end_with_step
from distprof.recording.tracing.slice_names import copy_with_real_names, recorded_name
from distprof.recording.tracing.timeline_files import TimelineFiles
from distprof.sizes import bytes_in, rank_bytes
from distprof.system import end_forked_children_at_exit

ACTIVITIES = {"cuda": ProfilerActivity.CUDA, "xpu": ProfilerActivity.XPU, "mtia": ProfilerActivity.MTIA,
              "hpu": ProfilerActivity.HPU}
END_BYTES = 64
DETACHES = "TEARDOWN_CUPTI"
SURVIVES_FROM = (12, 6)
"""Before this version of CUDA, a process that replays graphs may not survive detaching CUPTI."""
ABOUT_CYCLES = "Warning: Profiler clears events at the end of each cycle"
"""A warning of torch 2.10, which is also printed for a session of one cycle."""


class Timeline:
    """A session of torch.profiler."""

    def __init__(self, scopes: ModuleScopes, sessions: ProfilerSessions, note: Callable[[str], None],
                 tags: Callable[[], dict[str, Any]], *, memory: bool = False) -> None:
        """Prepares; `tags` become the top-level key "distprof" of the trace, `memory` adds every allocation."""
        self._memory = memory
        self._sessions = sessions
        self._scopes = scopes
        self._note = note
        self._tags = tags
        self._profile: Any = None
        self._stopped = False
        self._ended_ns = self._thread = 0
        self.is_written = False
        """True once a trace was written."""
        self._closures: list[Any] = []
        self._most_bytes = rank_bytes(os.environ)

    def room_in(self, folder: Path) -> int:
        """Returns the number of bytes left for a timeline in the rank's folder."""
        return self._most_bytes - bytes_in(folder)

    def start(self) -> None:
        """Begins to record, unless no session can begin, for example because the script is being profiled."""
        why_none = self._sessions.why_none()
        if why_none is not None:
            self._note(f"no timeline is recorded: {why_none}")
            return
        self._profile = torch.profiler.profile(
            activities=_activities(), record_shapes=True, profile_memory=self._memory,
            experimental_config=_with_synchronisation())
        detach_at_end()
        with kineto_begins():
            self._sessions.begin(self._profile)
        self._stopped = False
        self._scopes.add(self)

    @property
    def recording(self) -> bool:
        """True while our session records."""
        return self._profile is not None and not self._stopped

    def stop(self) -> None:
        """Ends the session; its events are kept until `write`."""
        self._scopes.remove(self)
        self.end()

    def end(self) -> None:
        """Ends the session only, perhaps while modules run; `stop` also removes the listener of modules."""
        if self.recording:
            self._stopped = True
            self._profile.add_metadata_json("distprof", json.dumps(self._tags()))
            has_ended = self._sessions.end(self._profile)
            self._ended_ns, self._thread = self._sessions.ended_ns, threading.get_native_id()
            if not has_ended:
                why = self._sessions.why_not_ended()
                self._note(f"{why} after the recorded steps: their timeline is written once that ends")

    def enter(self, frame: Frame) -> None:
        """Opens a slice named after the module."""
        if frame.repeats_outer or not self.recording:
            return
        if frame.is_root and frame.evaluation:
            frame.data[EVALUATION_SLICE] = _slice(EVALUATION_SLICE)
        path = frame.site.path or "model"
        frame.data[self] = _slice(recorded_name(f"{path} [{frame.site.class_name}]"))

    def exit(self, frame: Frame, _args: tuple[Any, ...], _kwargs: dict[str, Any], _result: object) -> None:
        """Closes the slice of the module."""
        for scope in (frame.data.get(self), frame.data.get(EVALUATION_SLICE)):
            if scope is not None:
                scope.__exit__(None, None, None)

    def closure_begins(self) -> None:
        """Opens a slice around the closure of an optimizer."""
        if self.recording:
            self._closures.append(_slice(CLOSURE_SLICE))

    def closure_ends(self) -> None:
        """Closes that slice."""
        if self._closures:
            self._closures.pop().__exit__(None, None, None)

    def write(self, folder: RankFolder, file: str, *, steps: Sequence[TableRow], room: int | None = None,
              table: bool = False) -> TimelineFiles:
        """Writes the Chrome trace to a `.json.gz` file; returns 0 events if nothing was recorded.

        Args:
            folder: The folder for the file.
            file: The name of the file.
            steps: The steps that the trace contains.
            room: Bytes that the trace and the table of its events may take; the shortest events are left out if they
                would take more. None: no limit.
            table: Whether to write that table too.

        Raises:
            OutputError: The profiler could not write the whole trace.
        """
        if self._profile is None or not self._sessions.has_ended(self._profile):
            return TimelineFiles(num_events=0)
        path = folder.path.absolute() / file
        plain = path.with_suffix("")
        try:
            self._export(plain, steps)
            found: TimelineFiles = folder.call(
                "distprof.recording.tracing.timeline_files:write_timeline", plain, path, steps=steps, room=room,
                most_bytes=self._most_bytes, table=folder.about_tables() if table else None)
        finally:  # it is many times the size of the file that stays
            for left in (plain, plain.with_suffix(".json.tmp")):
                with suppress(OSError):
                    left.unlink()
        self.is_written = True
        self._profile = None  # otherwise the events would stay in memory for the rest of the training
        if found.unreadable:
            self._note(f"cannot read the timeline that torch.profiler wrote ({found.unreadable}), so it has no table "
                       "of events")
        return found

    def events(self) -> Iterable[Any]:
        """Returns the profiler's own events as trees; none if this torch lacks them, or after they were written."""
        if self._profile is None or not self._sessions.has_ended(self._profile):
            return ()
        results = getattr(self._profile.profiler, "kineto_results", None)
        tree: Callable[[], Iterable[Any]] | None = getattr(results, "experimental_event_tree", None)
        return tree() if tree is not None else ()

    def _export(self, plain: Path, steps: Sequence[TableRow]) -> None:
        with told(plain):
            plain.touch()  # if this failed in Kineto, it would write its own message to stderr
        try:
            self._profile.export_chrome_trace(str(plain))
            _check_end(plain)
            last_ns = max((step["end_ns"] for step in steps), default=0)
            end_with_step(plain, last_ns, self._ended_ns, self._thread)
        except OSError:  # Kineto does not report the reason
            raise _not_whole(plain) from None

    def save(self, path: Path, steps: Sequence[TableRow]) -> bool:
        """Writes only the Chrome trace, using little memory of our own; False if nothing was recorded.

        Args:
            path: The file.
            steps: The steps that the trace contains.

        Raises:
            OutputError: The whole trace could not be written.
        """
        if self._profile is None or not self._sessions.has_ended(self._profile):
            return False
        plain = path.with_suffix("")
        try:
            self._export(plain, steps)
            self._profile = None
            with told(path):
                write_whole(path, lambda temporary: _compress(plain, temporary))
        finally:
            for left in (plain, plain.with_suffix(".json.tmp")):
                with suppress(OSError):
                    left.unlink()
        self.is_written = True
        return True


def _activities() -> list[ProfilerActivity]:
    kind = device_type()
    return [ProfilerActivity.CPU, *([] if kind == CPU else [activity_of(kind)])]


def activity_of(kind: str) -> ProfilerActivity:
    """Returns the activity with which the profiler records an accelerator of this type."""
    return ACTIVITIES.get(kind, ProfilerActivity.PrivateUse1)


def _with_synchronisation() -> _ExperimentalConfig:
    """Returns a configuration that records which stream waits for which event, and when the host waits for a device."""
    return _ExperimentalConfig(enable_cuda_sync_events=device_type() == "cuda")


def _check_end(path: Path) -> None:
    """Checks that the file is complete, since Kineto does not report write errors."""
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - END_BYTES, 0))
        if not file.read().rstrip().endswith(b"}"):
            raise _not_whole(path)


def _not_whole(path: Path) -> OutputError:
    return OutputError(f"could not write the whole timeline to {path}",
                       hint="is the disk full, or was the folder removed?")


def _compress(source: Path, target: Path) -> None:
    with source.open("rb") as plain, igzip.open(target, "wb", compresslevel=1) as packed:
        copy_with_real_names(plain, cast(BinaryIO, packed))


def _slice(name: str) -> Any:
    """Opens a slice; its `__exit__` closes it."""
    scope = torch.autograd.profiler.record_function(name)
    scope.__enter__()
    return scope


def detach_at_end() -> None:
    """Makes Kineto detach CUPTI from the driver when a session ends, as its versions from 2026 on do by default.

    Otherwise launches take a third longer until the process ends (https://github.com/pytorch/pytorch/issues/144455).
    Kineto reads the variable when sessions begin and end, and in between on a thread of its own, so it stays set.
    """
    version = torch.version.cuda
    if version is not None and tuple(map(int, version.split(".")[:2])) >= SURVIVES_FROM:
        os.environ.setdefault(DETACHES, "1")


@contextmanager
def kineto_begins() -> Iterator[None]:
    """Keeps Kineto, which reads the variable when it first starts, from writing to the script's stderr.

    Kineto's destructor waits for its thread, also in forked children (torch 2.13), which therefore skip it.
    """
    end_forked_children_at_exit()
    ours, about_cycles = "KINETO_LOG_LEVEL" not in os.environ, QuietAbout(ABOUT_CYCLES)
    about_cycles.start()
    if ours:
        os.environ["KINETO_LOG_LEVEL"] = "99"
    try:
        yield
    finally:
        about_cycles.stop()
        if ours:
            del os.environ["KINETO_LOG_LEVEL"]
