"""The trace pass: torch.profiler with module scopes; out come a Chrome trace file and the same events as rows."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import torch
from isal import igzip
from torch.autograd import profiler as autograd_profiler
from torch.profiler import ProfilerActivity

from distprof.errors import OutputError
from distprof.files import write_whole
from distprof.model.scopes import Frame, ModuleScopes
from distprof.recording.communication.backend_times import BackendEvent, is_work

Row = dict[str, Any]
MOST_SHAPES = 30
"""The profiler lists the shapes of that many tensors of a list."""

class Args(msgspec.Struct, gc=False):
    """What is needed of an event's arguments, whatever the type of a value is."""

    external_id: Any = msgspec.field(name="External id", default=None)
    correlation: Any = None
    sequence_number: Any = msgspec.field(name="Sequence number", default=None)
    forward_thread: Any = msgspec.field(name="Fwd thread id", default=None)
    name: Any = None
    """Of a process or thread."""
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw(b""))
    finished: Any = None
    """False where the session ended before the event."""
    group: Any = msgspec.field(name="Process Group Name", default=None)
    sequence: Any = msgspec.field(name="Seq", default=None)
    collective: Any = msgspec.field(name="Collective name", default=None)


NO_ARGS = Args()


class Event(msgspec.Struct, gc=False):
    """What the events table needs of a Chrome event."""

    ph: str
    name: str = ""
    cat: str | None = None
    ts: float = 0.0
    dur: float | None = None
    pid: int | str = 0
    tid: int | str = 0
    args: Args | None = None


class Trace(msgspec.Struct):
    """A Chrome trace as Kineto writes it."""

    traceEvents: list[Event]
    baseTimeNanoseconds: int = 0


class Written(msgspec.Struct):
    """What a trace says, for the tables."""

    events: list[Row]
    """Rows of the events table, without the tags."""
    work: list[BackendEvent]
    """What the backends of communication did."""


class Timeline:
    """One torch.profiler session over the steps of the trace pass."""

    def __init__(self, scopes: ModuleScopes, note: Callable[[str], None], tags: Callable[[], dict[str, Any]]) -> None:
        """`tags` gives rank, sizes and so on: they become the top-level key "distprof" of the trace."""
        self._scopes = scopes
        self._note = note
        self._tags = tags
        self._profile: Any = None
        self._stopped_early = False
        self._prepare: Any = None

    def start(self) -> None:
        """Begins to record, unless the script is being profiled already."""
        if torch._C._autograd._profiler_enabled():
            self._note("the script runs its own profiler: no timeline is recorded")
            return
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_initialized():
            activities.append(ProfilerActivity.CUDA)
        self._profile = torch.profiler.profile(activities=activities, record_shapes=True, acc_events=True)
        with _quiet():
            self._profile.start()
        self._yield_to_others()
        self._scopes.add(self)

    @property
    def recording(self) -> bool:
        """True while a session of ours is on."""
        return self._profile is not None and not self._stopped_early

    def stop(self) -> None:
        """Ends the session; its events are kept until `write`."""
        self._stop_yielding()
        self._scopes.remove(self)
        if self._profile is not None and not self._stopped_early:
            self._end_session()

    def enter(self, frame: Frame) -> None:
        """Opens a slice named after the module."""
        if frame.repeats_outer:
            return
        path = frame.site.path or "model"
        scope = torch.autograd.profiler.record_function(f"{path} [{frame.site.class_name}]")
        scope.__enter__()
        frame.data[self] = scope

    def exit(self, frame: Frame, _args: Any, _kwargs: Any, _result: Any) -> None:
        """Closes it."""
        scope = frame.data.get(self)
        if scope is not None:
            scope.__exit__(None, None, None)

    def write(self, path: Path) -> Written:
        """Writes the Chrome trace to a `.json.gz` file and gives what it says."""
        if self._profile is None:
            return Written(events=[], work=[])
        plain = path.with_suffix("")
        self._profile.export_chrome_trace(str(plain))
        try:
            text = plain.read_bytes()
            found = read(text)
        except (FileNotFoundError, msgspec.MsgspecError):
            for left in (plain, plain.with_suffix(".json.tmp")):
                left.unlink(missing_ok=True)
            raise OutputError(f"the timeline could not be written whole to {plain}", hint="is the disk full?") from None
        write_whole(path, lambda temporary: temporary.write_bytes(igzip.compress(text, 1)))
        plain.unlink()
        self._profile = None  # the events would stay in memory for the rest of the training
        return found

    def _end_session(self) -> None:
        self._profile.add_metadata_json("distprof", json.dumps(self._tags()))
        self._profile.stop()

    def _yield_to_others(self) -> None:
        # a second session would empty ours and stopping ours would end the second: when the script starts its
        # own profiler, ours stops first
        prepare: Any = autograd_profiler.profile._prepare_trace
        self._prepare = prepare

        def prepare_theirs(theirs: Any) -> Any:
            self._stop_yielding()
            self._end_session()
            self._stopped_early = True
            self._note("the script started its own profiler: the timeline ends there")
            return prepare(theirs)

        autograd_profiler.profile._prepare_trace = prepare_theirs  # type: ignore[method-assign]

    def _stop_yielding(self) -> None:
        if self._prepare is not None:
            autograd_profiler.profile._prepare_trace = self._prepare  # type: ignore[method-assign]
            self._prepare = None


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps Kineto, which reads this variable when it first starts, from writing to the script's stderr."""
    ours = "KINETO_LOG_LEVEL" not in os.environ
    if ours:
        os.environ["KINETO_LOG_LEVEL"] = "99"
    try:
        yield
    finally:
        if ours:
            del os.environ["KINETO_LOG_LEVEL"]


def read(text: bytes) -> Written:
    """Slices and instants of a Kineto trace.

    Kineto's microseconds count from `baseTimeNanoseconds` on; the double of the file is exact to 1 ns there.
    """
    trace = msgspec.json.decode(text, type=Trace)
    thread_names = _thread_names(trace.traceEvents)
    written = Written(events=[], work=[])
    for event in trace.traceEvents:
        if event.ph in ("X", "i"):
            row = _row(event, trace.baseTimeNanoseconds, thread_names)
            written.events.append(row)
            if event.args is not None and is_work(event.name, event.args.group):
                written.work.append(_work(event, event.args, row))
    return written


def _row(event: Event, base_ns: int, thread_names: dict[tuple[int | str, int | str], str]) -> Row:
    args = event.args or NO_ARGS
    return {
        "name": event.name,
        "category": event.cat,
        "start_ns": base_ns + round(event.ts * 1000),
        "duration_ns": None if event.dur is None else round(event.dur * 1000),
        "process": str(event.pid),
        "thread": str(event.tid),
        "thread_name": thread_names.get((event.pid, event.tid)),
        "external_id": _int64(args.external_id),
        "correlation": _int64(args.correlation),
        "sequence_number": _int64(args.sequence_number),
        "forward_thread": _int64(args.forward_thread),
    }


def _int64(value: Any) -> int | None:
    return value if type(value) is int and -2**63 <= value < 2**63 else None


def _work(event: Event, args: Args, row: Row) -> BackendEvent:
    start_ns, duration_ns = row["start_ns"], row["duration_ns"]
    over = duration_ns is not None and args.finished is not False
    return BackendEvent(name=event.name, thread=event.tid, start_ns=start_ns,
                        end_ns=start_ns + duration_ns if over else None, elements=_elements(bytes(args.dims)),
                        group=args.group, sequence=_int64(args.sequence), collective=args.collective)


def _elements(dims: bytes) -> int | None:
    """Elements of the inputs; None where there are none or more than the profiler lists."""
    try:
        shapes = msgspec.json.decode(dims, type=list[list[int]]) if dims else []
    except msgspec.MsgspecError:
        return None
    return sum(math.prod(shape) for shape in shapes) if 0 < len(shapes) < MOST_SHAPES else None


def _thread_names(events: list[Event]) -> dict[tuple[int | str, int | str], str]:
    names: dict[tuple[int | str, int | str], str] = {}
    programs = {event.pid: _name(event) for event in events if event.ph == "M" and event.name == "process_name"}
    for event in events:
        if event.ph == "M" and event.name == "thread_name":
            # Kineto names some threads twice, once after the program: the other name says more
            known = names.get((event.pid, event.tid), "")
            if not known or known.endswith(f"({programs.get(event.pid)})"):
                names[event.pid, event.tid] = _name(event)
    return names


def _name(event: Event) -> str:
    return str(event.args.name) if event.args is not None and event.args.name is not None else ""
