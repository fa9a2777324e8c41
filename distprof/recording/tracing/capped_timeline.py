"""A timeline that would take too many bytes: without its shortest events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from distprof.contract.rank_json import EventsLeftOut
from distprof.contract.tables import TableRow
from distprof.recording.tracing.kineto_trace import TraceContent

ROW_BYTES = 16
"""What a row of events.parquet takes at most, in the mean: 10 to 14 in tables of 1,000 to 23,000 rows."""
MARGIN = 0.9
"""Of the room, what is filled: what is left is packed less well than the whole."""
STRUCTURE = frozenset(("user_annotation", "gpu_user_annotation", "cuda_runtime", "cuda_driver"))
"""Categories of slices that say where others belong: modules, steps, waits, calls of kernels. They go last."""
COMMUNICATION = ("c10d", "_c10d_functional", "nccl", "gloo", "record_param_comms")
"""Beginnings of names of slices that are likewise kept longest."""


class _Event(msgspec.Struct, gc=False):
    ph: str
    name: str = ""
    cat: str | None = None
    dur: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Capped:
    """What is left of a timeline."""

    text: bytes
    content: TraceContent
    left_out: EventsLeftOut


def capped(text: bytes, content: TraceContent, part: float, *, most_bytes: int) -> Capped:
    """The timeline with so large a part of its bytes.

    Args:
        text: Its JSON.
        content: What is in it.
        part: From 0 to 1.
        most_bytes: The limit, to be told.
    """
    trace = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    events = msgspec.json.decode(trace["traceEvents"], type=list[msgspec.Raw])
    read = [msgspec.json.decode(event, type=_Event) for event in events]
    gone = _chosen(events, read, part * MARGIN * len(text) - (len(text) - len(trace["traceEvents"])))
    trace["traceEvents"] = msgspec.Raw(b"[" + b",\n".join(
        bytes(event) for number, event in enumerate(events) if number not in gone) + b"]")
    rows = [number for number, event in enumerate(read) if event.ph in ("X", "i")]  # those that have a row
    kept = [row for number, row in zip(rows, content.rows, strict=True) if number not in gone]
    durations = [round((read[number].dur or 0.0) * 1000) for number in gone]
    left_out = EventsLeftOut(num_events=len(gone), total_ns=sum(durations), longest_ns=max(durations, default=0),
                             most_bytes=most_bytes)
    return Capped(text=msgspec.json.encode(trace), left_out=left_out,
                  content=TraceContent(rows=kept, backend_events=content.backend_events))


def _chosen(events: Sequence[msgspec.Raw], read: Sequence[_Event], room: float) -> frozenset[int]:
    """The slices that have to go so that the others fit: the shortest first, those that others belong to last."""
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
    """The part of a timeline that may stay, 1 for all of it.

    Args:
        packed_bytes: What its trace takes when it is compressed.
        rows: Of its events, which are written as a table too.
        room: Bytes that there are for both.
    """
    needed = packed_bytes + ROW_BYTES * len(rows)
    return 1.0 if needed <= room else max(room, 0) / needed
