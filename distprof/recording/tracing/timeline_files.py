"""The files that a timeline becomes: its trace, compressed, and the table of its events.

Made by the process that writes tables: what is read of a timeline is many small objects, and of the memory that they
take some megabytes would stay with the script.
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
    """What was written, and what of it the rank goes on with."""

    num_events: int
    """Rows that the table has, or would have."""
    backend_events: Sequence[BackendEvent] = ()
    """Work of the backends of communication."""
    left_out: EventsLeftOut | None = None
    """Events for which there was no room."""
    unreadable: str = ""
    """Why the trace could not be read, and has no table; it is kept as it is."""
    failure: Exception | None = None
    """Why there is no table although there is a trace."""


def write_timeline(plain: Path, packed: Path, *, steps: Sequence[TableRow], room: int | None, most_bytes: int,
                   table: Mapping[str, Any] | None) -> TimelineFiles:
    """Writes the trace of a rank as `.json.gz`, and events.parquet beside it.

    Args:
        plain: As Kineto wrote it.
        packed: Where the trace goes.
        steps: Those that are in it.
        room: Bytes that both files may take; the shortest events are left out where they would take more. None: as
            many as they need.
        most_bytes: The limit of the rank, to be told.
        table: Tags and metadata of the table; None: there is to be none.

    Raises:
        OutputError: The trace of Kineto cannot be read, or that of the rank not be written.
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
    """What can be read of a trace that is whole; the text itself is kept in any case, as merging reads on behind
    damage."""
    try:
        return *read_repaired(text), ""
    except msgspec.MsgspecError as error:
        return text, TraceContent(rows=[], backend_events=[]), str(error)


def _table(folder: Path, rows: Sequence[TableRow], steps: Sequence[TableRow],
           table: Mapping[str, Any]) -> Exception | None:
    """Writes it; the trace is there whether it can be written or not."""
    from distprof.contract.parquet import write_table

    _add_steps(rows, steps)
    try:
        with told(folder):
            write_table(folder, EVENTS, rows, **table)
    except Exception as error:  # noqa: BLE001 (it is raised where the trace is noted)
        return error
    return None


def _add_steps(events: Sequence[TableRow], steps: Sequence[TableRow]) -> None:
    """Adds to each event the step in which it starts."""
    windows = [(step["start_ns"], step["end_ns"], step["step"]) for step in steps]
    for event in events:
        event["step"] = next((step for start, end, step in windows if start <= event["start_ns"] < end), None)
