"""`watch-000.bin`, `watch-001.bin`, ... of a rank: all its steps outside of the passes, appended while the job runs.

A file is a sequence of frames (`framing.py`), each a `Frame` as MessagePack.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from distprof.contract.framing import contents, framed

MARK = b"dpW1"
UNKNOWN = -1
"""In a column: not known for these steps."""
SUMMED = ("span_ns", "data_ns", "forward_ns", "backward_ns", "optimizer_ns", "device_ns", "cpu_ns", "switches", "gc_ns")
"""Columns that add up where rows are joined."""


class StepRows(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Steps of a rank, a row for each step or for several short ones in a row; all columns are of one length.

    Phases of a row add up to its span, but for those that are `UNKNOWN`.
    """

    first_step: list[int] = []
    num_steps: list[int] = []
    """The weight of the row, at least 1."""
    end_ns: list[int] = []
    """When the last of them ended: since the epoch, the clock of the rank."""
    span_ns: list[int] = []
    """How long they took together, by a clock that is never set."""
    longest_ns: list[int] = []
    """The longest of them."""
    longest_step: list[int] = []
    """Its number."""
    data_ns: list[int] = []
    """From the end of a step to its first forward call."""
    forward_ns: list[int] = []
    """Inside of forward calls of root modules."""
    backward_ns: list[int] = []
    """What is neither: between forward calls, and from the last one to the optimizer."""
    optimizer_ns: list[int] = []
    """Inside of optimizers."""
    device_ns: list[int] = []
    """Between the marks on the device's stream at the ends of steps; read later, never waited for."""
    cpu_ns: list[int] = []
    """Processor time of the thread of the steps."""
    switches: list[int] = []
    """How often that thread had to give its processor to another."""
    gc_ns: list[int] = []
    """In Python's garbage collection."""
    host_bytes: list[int] = []
    """Memory of the process at the end, resident."""
    device_bytes: list[int] = []
    """Memory of the device that tensors hold at the end."""


class SampledStep(msgspec.Struct, kw_only=True):
    """A step in which communication was labelled; the same steps on all ranks. Calls are in the order of issue.

    The N-th call of a group is the same call on all its ranks. All times are of the host where communication runs on
    the host, else those of the stream.
    """

    step: int
    start_ns: int
    """Since the epoch, the clock of the rank."""
    span_ns: int
    num_calls: int
    """More than are listed where there were too many."""
    group: list[int]
    """Of each call, a place in `Frame.groups`."""
    op: list[int]
    """Of each call, a place in `Frame.names`."""
    arrived_ns: list[int]
    """From the start of the step until the rank, or its stream, had come to the call."""
    took_ns: list[int]
    """From then until the call was over; `UNKNOWN` where nothing tells."""
    blocked_ns: list[int]
    """How long the thread of the steps, or the stream, stood still for it; `UNKNOWN` where nothing tells."""


class Note(msgspec.Struct, kw_only=True):
    """Something that happened between two steps."""

    time_ns: int
    step: int
    kind: str
    """window_began, window_ended, window_missed, evaluation, checkpoint, thinned, ended."""
    text: str = ""


class Frame(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What is appended at once."""

    rows: StepRows = msgspec.field(default_factory=StepRows)
    samples: list[SampledStep] = []
    notes: list[Note] = []
    groups: list[tuple[str, list[int]]] = []
    """Process groups that the samples name: torch's name and the ranks."""
    names: list[str] = []
    """Other names in the samples."""


TIMES = ("end_ns", "span_ns", "longest_ns", "data_ns", "forward_ns", "backward_ns", "optimizer_ns", "device_ns",
         "cpu_ns", "gc_ns")
"""Columns that are kept in microseconds."""
GROWING = ("first_step", "end_ns", "longest_step", "host_bytes", "device_bytes")
"""Columns that are kept as differences."""
IN_KIB = ("host_bytes", "device_bytes")


def encoded(frame: Frame) -> bytes:
    """The bytes of a frame; times lose what is below a microsecond, memory what is below 1 KiB."""
    return framed(MARK, msgspec.msgpack.encode(msgspec.structs.replace(frame, rows=_packed(frame.rows))))


def frames(content: bytes) -> Iterator[tuple[int, Frame]]:
    """The frames in these bytes, each with the place behind it; what is damaged is skipped.

    Bytes behind the last place that is yielded may be the begin of a frame that is still being written.
    """
    for end, body in contents(MARK, content):
        try:
            frame = msgspec.msgpack.decode(body, type=Frame)
            yield end, msgspec.structs.replace(frame, rows=_unpacked(frame.rows))
        except msgspec.MsgspecError:
            continue


def _packed(rows: StepRows) -> StepRows:
    return StepRows(**{name: _differences(values) if name in GROWING else values
                       for name in StepRows.__struct_fields__ for values in [_scaled(rows, name)]})


def _scaled(rows: StepRows, name: str) -> list[int]:
    unit = _unit(name)
    return [value // unit if value >= 0 else UNKNOWN for value in getattr(rows, name)]


def _differences(values: list[int]) -> list[int]:
    return [value - before for value, before in zip(values, [0, *values], strict=False)]


def _unpacked(rows: StepRows) -> StepRows:
    columns: dict[str, list[int]] = {}
    for name in StepRows.__struct_fields__:
        values, unit, total = getattr(rows, name), _unit(name), 0
        if name in GROWING:
            values = [total := total + value for value in values]
        columns[name] = [value * unit if value >= 0 else UNKNOWN for value in values]
    if len({len(values) for values in columns.values()}) > 1:
        raise msgspec.ValidationError("columns of different lengths")
    return StepRows(**columns)


def _unit(name: str) -> int:
    return 1000 if name in TIMES else 1024 if name in IN_KIB else 1


def joined(rows: StepRows, first: int, last: int) -> dict[str, Any]:
    """One row for the rows from `first` to `last`, both included."""
    some = slice(first, last + 1)
    row: dict[str, Any] = {name: getattr(rows, name)[last] for name in StepRows.__struct_fields__}
    row["first_step"], row["num_steps"] = rows.first_step[first], sum(rows.num_steps[some])
    longest = max(range(first, last + 1), key=lambda place: rows.longest_ns[place])
    row["longest_ns"], row["longest_step"] = rows.longest_ns[longest], rows.longest_step[longest]
    for name in SUMMED:
        values = getattr(rows, name)[some]
        row[name] = UNKNOWN if UNKNOWN in values else sum(values)
    return row
