"""Writes the files of a timeline: its compressed trace, and the table of its events.

This runs in the process that writes tables: reading a timeline creates many small objects, and some megabytes of their
memory would stay in the script's process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from isal import igzip

from distprof.contract.rank_json import EventsLeftOut
from distprof.contract.tables import EVENTS, TableRow
from distprof.files import told, write_whole
from distprof.recording.communication.collective_call import BackendEvent
from distprof.recording.tracing.kineto_trace import TraceContent, capped, part_that_fits, read_repaired
from distprof.recording.tracing.slice_names import real_names


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineFiles:
    """What was written, and what the rank still needs."""

    num_events: int
    """Number of rows that the table has, or would have."""
    backend_events: Sequence[BackendEvent] = ()
    """Work of communication backends."""
    left_out: EventsLeftOut | None = None
    """Events that were left out for lack of room; None if there are none."""
    unreadable: str = ""
    """Why the trace could not be read and has no table; the trace is kept as it is."""
    failure: Exception | None = None
    """Why there is no table although there is a trace."""


def write_timeline(plain: Path, packed: Path, *, steps: Sequence[TableRow], room: int | None, most_bytes: int,
                   table: Mapping[str, Any] | None) -> TimelineFiles:
    """Writes the trace of a rank as `.json.gz`, and events.parquet next to it.

    Args:
        plain: The file that Kineto wrote.
        packed: The file for the compressed trace.
        steps: The steps that the trace contains.
        room: Bytes that both files may take; the shortest events are left out if they would take more. None: no limit.
        most_bytes: The limit of the rank, which is reported.
        table: Tags and metadata of the table; None: no table is written.

    Raises:
        OutputError: Kineto's trace cannot be read, or the rank's trace cannot be written.
    """
    with told(plain):
        text = real_names(plain.read_bytes())
    text, found, unreadable = _read(text)
    compressed, left_out = igzip.compress(text, 1), None
    part = 1.0 if room is None else part_that_fits(len(compressed), found.rows, room)
    if part < 1 and found.rows:
        less = capped(text, found, part, most_bytes=most_bytes)
        compressed, found, left_out = igzip.compress(less.text, 1), less.content, less.left_out
    with told(packed):
        write_whole(packed, lambda temporary: temporary.write_bytes(compressed))
    failure = None if table is None or not found.rows else _table(packed.parent, found.rows, steps, table)
    return TimelineFiles(num_events=len(found.rows), backend_events=found.backend_events, left_out=left_out,
                         unreadable=unreadable, failure=failure)


def _read(text: bytes) -> tuple[bytes, TraceContent, str]:
    """Returns the text of a trace, its content, and why it cannot be read.

    The text is kept in any case, since merging can read past damage.
    """
    try:
        return *read_repaired(text), ""
    except msgspec.MsgspecError as error:
        return text, TraceContent(rows=[], backend_events=[]), str(error)


def _table(folder: Path, rows: Sequence[TableRow], steps: Sequence[TableRow],
           table: Mapping[str, Any]) -> Exception | None:
    """Writes the table; returns an error instead of raising it, as the trace exists anyway."""
    from distprof.contract.parquet import write_table

    _add_steps(rows, steps)
    try:
        with told(folder):
            write_table(folder, EVENTS, rows, **table)
    except Exception as error:  # noqa: BLE001 (raised by the caller, after it has registered the trace)
        return error
    return None


def _add_steps(events: Sequence[TableRow], steps: Sequence[TableRow]) -> None:
    """Adds to each event the step in which it starts."""
    windows = [(step["start_ns"], step["end_ns"], step["step"]) for step in steps]
    for event in events:
        event["step"] = next((step for start, end, step in windows if start <= event["start_ns"] < end), None)
