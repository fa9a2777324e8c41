"""Reads the Chrome trace that Kineto wrote: rows of events.parquet, and the work of communication backends.

A trace that would take too many bytes is written without its shortest events.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from distprof.contract.rank_json import EventsLeftOut
from distprof.contract.tables import TableRow
from distprof.recording.communication.collective_call import BackendEvent, is_backend_event
from distprof.recording.tracing.slice_names import strict

MOST_SHAPES = 30
"""The profiler lists the shapes of at most this many tensors of a list."""
LAUNCHES = ("cuda_", "xpu_")
"""Prefixes of the categories of calls that launch kernels; those of ROCm have the same names as those of CUDA."""


class EventArgs(msgspec.Struct, gc=False):
    """The arguments that are used; their values may have any type."""

    external_id: Any = msgspec.field(name="External id", default=None)
    correlation: Any = None
    sequence_number: Any = msgspec.field(name="Sequence number", default=None)
    forward_thread: Any = msgspec.field(name="Fwd thread id", default=None)
    name: Any = None
    """Name of a process or thread, in metadata events."""
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw(b""))
    finished: Any = None
    """False if the session ended before the event."""
    group: Any = msgspec.field(name="Process Group Name", default=None)
    sequence: Any = msgspec.field(name="Seq", default=None)
    collective: Any = msgspec.field(name="Collective name", default=None)


NO_ARGS = EventArgs()


class KinetoEvent(msgspec.Struct, gc=False):
    """A Chrome event, with the fields that the tables need."""

    ph: str
    name: str = ""
    cat: str | None = None
    ts: float = 0.0
    dur: float | None = None
    pid: int | str = 0
    tid: int | str = 0
    args: EventArgs | None = None


class KinetoTrace(msgspec.Struct):
    """A Chrome trace as Kineto writes it."""

    traceEvents: list[KinetoEvent]
    baseTimeNanoseconds: int = 0


class TraceContent(msgspec.Struct):
    """The content of a trace, as needed for the tables."""

    rows: list[TableRow]
    """Rows of events.parquet, without tags and step."""
    backend_events: list[BackendEvent]
    """Work of communication backends."""


def read_trace(text: bytes) -> TraceContent:
    """Reads the slices and instants of a Kineto trace.

    Kineto's microseconds count from `baseTimeNanoseconds`; at this size, doubles are exact to 1 ns.
    """
    trace = msgspec.json.decode(text, type=KinetoTrace)
    thread_names = _thread_names(trace.traceEvents)
    rows, launched_ns = list[TableRow](), dict[int, int]()
    communication = list[tuple[KinetoEvent, EventArgs, TableRow]]()
    for event in trace.traceEvents:
        if event.ph in ("X", "i"):
            row = _row(event, trace.baseTimeNanoseconds, thread_names)
            rows.append(row)
            if event.args is not None and is_backend_event(event.name, event.args.group):
                communication.append((event, event.args, row))
            elif row["correlation"] is not None and (event.cat or "").startswith(LAUNCHES):
                launched_ns[row["correlation"]] = row["start_ns"]
    return TraceContent(rows=rows, backend_events=[_backend_event(*one, launched_ns) for one in communication])


def read_repaired(text: bytes) -> tuple[bytes, TraceContent]:
    """Returns the trace as valid JSON, and its content.

    Raises:
        msgspec.MsgspecError: It cannot be read, even after names given by scripts were escaped.
    """
    try:
        return text, read_trace(text)
    except msgspec.DecodeError:
        repaired = strict(text)
        return repaired, read_trace(repaired)


def _row(event: KinetoEvent, base_ns: int, thread_names: dict[tuple[int | str, int | str], str]) -> TableRow:
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


def _int64(value: object) -> int | None:
    return value if type(value) is int and -2**63 <= value < 2**63 else None


def _backend_event(event: KinetoEvent, args: EventArgs, row: TableRow,
                   launched_ns: Mapping[int, int]) -> BackendEvent:
    start_ns, duration_ns = row["start_ns"], row["duration_ns"]
    over = duration_ns is not None and args.finished is not False
    return BackendEvent(name=event.name, thread=event.tid, start_ns=start_ns,
                        end_ns=start_ns + duration_ns if over else None, elements=_elements(bytes(args.dims)),
                        group=args.group, sequence=_int64(args.sequence), collective=args.collective,
                        launched_ns=launched_ns.get(row["correlation"]))


def _elements(dims: bytes) -> int | None:
    """Returns the number of elements of the inputs; None if there are none, or more inputs than the profiler lists."""
    try:
        shapes = msgspec.json.decode(dims, type=list[list[int]]) if dims else []
    except msgspec.MsgspecError:
        return None
    return sum(math.prod(shape) for shape in shapes) if 0 < len(shapes) < MOST_SHAPES else None


def _thread_names(events: list[KinetoEvent]) -> dict[tuple[int | str, int | str], str]:
    names: dict[tuple[int | str, int | str], str] = {}
    programs = {event.pid: _name(event) for event in events if event.ph == "M" and event.name == "process_name"}
    for event in events:
        if event.ph == "M" and event.name == "thread_name":
            # Kineto names some threads twice, once after the program: then the other name is better
            known = names.get((event.pid, event.tid), "")
            if not known or known.endswith(f"({programs.get(event.pid)})"):
                names[event.pid, event.tid] = _name(event)
    return names


def _name(event: KinetoEvent) -> str:
    return str(event.args.name) if event.args is not None and event.args.name is not None else ""


ROW_BYTES = 16
"""Upper bound of the mean size of a row of events.parquet: 10 to 14 bytes in tables of 1,000 to 23,000 rows."""
MARGIN = 0.9
"""Fraction of the available space that is filled, since what remains of a trace compresses less well than all of it."""
STRUCTURE = frozenset(("user_annotation", "gpu_user_annotation", "cuda_runtime", "cuda_driver"))
"""Categories of slices to which others belong: modules, steps, waits, kernel launches. They are dropped last."""
COMMUNICATION = ("c10d", "_c10d_functional", "nccl", "gloo", "record_param_comms")
"""Prefixes of names of slices that are also dropped last."""


class _Event(msgspec.Struct, gc=False):
    ph: str
    name: str = ""
    cat: str | None = None
    dur: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Capped:
    """What is left of a shortened timeline."""

    text: bytes
    content: TraceContent
    left_out: EventsLeftOut


def capped(text: bytes, content: TraceContent, part: float, *, most_bytes: int) -> Capped:
    """Shortens a timeline to a fraction of its bytes.

    Args:
        text: The timeline as JSON.
        content: Its content.
        part: The fraction, from 0 to 1.
        most_bytes: The limit, which is reported.
    """
    trace = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    events = msgspec.json.decode(trace["traceEvents"], type=list[msgspec.Raw])
    read = [msgspec.json.decode(event, type=_Event) for event in events]
    gone = _chosen(events, read, part * MARGIN * len(text) - (len(text) - len(trace["traceEvents"])))
    trace["traceEvents"] = msgspec.Raw(b"[" + b",\n".join(
        bytes(event) for number, event in enumerate(events) if number not in gone) + b"]")
    rows = [number for number, event in enumerate(read) if event.ph in ("X", "i")]  # events that have a row
    kept = [row for number, row in zip(rows, content.rows, strict=True) if number not in gone]
    durations = [round((read[number].dur or 0.0) * 1000) for number in gone]
    left_out = EventsLeftOut(num_events=len(gone), total_ns=sum(durations), longest_ns=max(durations, default=0),
                             most_bytes=most_bytes)
    return Capped(text=msgspec.json.encode(trace), left_out=left_out,
                  content=TraceContent(rows=kept, backend_events=content.backend_events))


def _chosen(events: Sequence[msgspec.Raw], read: Sequence[_Event], room: float) -> frozenset[int]:
    """Returns the slices to drop so that the rest fits: the shortest first, structure and communication last."""
    sizes = [len(bytes(event)) + 2 for event in events]
    slices = sorted((number for number, one in enumerate(read) if one.ph == "X"),
                    key=lambda number: (_is_structure(read[number]), read[number].dur or 0.0))
    total, gone = float(sum(sizes)), list[int]()
    for number in slices:
        if total <= room:
            break
        gone.append(number)
        total -= sizes[number]
    return frozenset(gone)


def _is_structure(event: _Event) -> bool:
    return event.cat in STRUCTURE or event.name.startswith(COMMUNICATION)


def part_that_fits(packed_bytes: int, rows: Sequence[TableRow], room: int) -> float:
    """Returns the fraction of a timeline that fits, 1 for all of it.

    Args:
        packed_bytes: Size of its compressed trace.
        rows: Its events, which are also written as a table.
        room: Bytes available for both.
    """
    needed = packed_bytes + ROW_BYTES * len(rows)
    return 1.0 if needed <= room else max(room, 0) / needed
