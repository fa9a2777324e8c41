"""`watch-000.bin`, `watch-001.bin`, ... of a rank: all its steps outside of the passes, appended while the job runs.

A file is a sequence of frames (`distprof/files.py`), each a `Frame` as MessagePack.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import msgspec

from distprof.contract.collective_ops import ranks_of, text_of
from distprof.files import frame_contents, framed

MARK = b"dpW1"
UNKNOWN = -1
"""In a column: not known for these steps."""
GOLDEN = 0x9E3779B97F4A7C15
"""2**64 divided by the golden ratio."""
MOST_SPARSE = 20
"""The largest exponent of `is_sampled`."""
SUMMED = ("span_ns", "data_ns", "forward_ns", "backward_ns", "optimizer_ns", "device_ns", "cpu_ns", "switches", "gc_ns")
"""Columns that add up where rows are joined."""


class StepRows(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Steps of a rank, a row for each step or for several short ones in a row; all columns are of one length.

    Phases of a row add up to its span, unless some are `UNKNOWN`. Where a device tells times they are those of its
    stream: the span is divided as some steps of the row were there.
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
    """window_asked, window_began, window_ended, window_missed, evaluation, checkpoint, thinned, ended."""
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


def is_sampled(step: int, exponent: int) -> bool:
    """Whether a step is one of those, 1 in 2**exponent, in which communication is labelled.

    The golden-ratio sequence (Knuth, volume 3, 6.4) spreads them evenly and in no rhythm that a job may have. Steps of
    a larger exponent are among those of a smaller one: ranks with different ones share steps.
    """
    return (step * GOLDEN & 0xFFFFFFFFFFFFFFFF) >> 64 - exponent == 0 if exponent else True


def sparseness(steps: list[int]) -> int:
    """The largest exponent for which all of these are sampled."""
    return next((exponent for exponent in range(MOST_SPARSE, 0, -1)
                 if all(is_sampled(step, exponent) for step in steps)), 0)


class PackedRows(StepRows, kw_only=True, array_like=True):
    """Rows as they are written, without the names of their columns; new ones follow behind the last."""


class _PackedStep(SampledStep, kw_only=True, array_like=True):
    """A sampled step, likewise."""


class _Packed(Frame, kw_only=True, omit_defaults=True):
    """A frame as it is written."""

    rows: PackedRows = msgspec.field(default_factory=PackedRows)
    samples: list[_PackedStep] = []  # type: ignore[assignment]  # it is never read as a Frame
    groups: list[tuple[str, str]] = []  # type: ignore[assignment]  # thousands of ranks in each frame would be too much


TIMES = ("end_ns", "span_ns", "longest_ns", "data_ns", "forward_ns", "backward_ns", "optimizer_ns", "device_ns",
         "cpu_ns", "gc_ns")
"""Columns that are kept in microseconds."""
GROWING = ("first_step", "end_ns", "longest_step", "host_bytes", "device_bytes")
"""Columns that are kept as differences."""
IN_KIB = ("host_bytes", "device_bytes")
PARTS = ("data_ns", "forward_ns", "optimizer_ns")
"""What `backward_ns` is the rest of: only by how much it is not is kept."""
OF_CALLS = ("arrived_ns", "took_ns", "blocked_ns")
"""Lists of a sampled step that are kept in microseconds."""


def encoded(frame: Frame) -> bytes:
    """The bytes of a frame; times lose what is below a microsecond, memory what is below 1 KiB."""
    packed = _Packed(rows=_packed(frame.rows), samples=_thousandths(frame.samples), notes=frame.notes,
                     groups=[(name, text_of(ranks)) for name, ranks in frame.groups], names=frame.names)
    return framed(MARK, msgspec.msgpack.encode(packed))


def frames(content: bytes) -> Iterator[tuple[int, Frame]]:
    """The frames in these bytes, each with the place behind it; what is damaged is skipped.

    Bytes behind the last place that is yielded may be the start of a frame that is still being written.
    """
    for end, frame, rows in packed_frames(content):
        try:
            yield end, msgspec.structs.replace(frame, rows=_unpacked(rows))
        except OverflowError:
            continue


def packed_frames(content: bytes) -> Iterator[tuple[int, Frame, PackedRows]]:
    """The same with rows as they are written, for who unpacks many frames at once."""
    for end, body in frame_contents(MARK, content):
        try:
            packed = msgspec.msgpack.decode(body, type=_Packed)
            frame = Frame(samples=_thousands(packed), notes=packed.notes,
                          groups=[(name, list(ranks_of(ranks))) for name, ranks in packed.groups], names=packed.names)
        except (msgspec.MsgspecError, OverflowError):
            continue
        if len({len(getattr(packed.rows, name)) for name in StepRows.__struct_fields__}) == 1:
            yield end, frame, packed.rows


def _thousandths(samples: list[SampledStep]) -> list[_PackedStep]:
    return [_PackedStep(**msgspec.structs.asdict(one) | {
        name: [value // 1000 if value >= 0 else UNKNOWN for value in getattr(one, name)] for name in OF_CALLS})
        for one in samples]


def _thousands(frame: _Packed) -> list[SampledStep]:
    """The samples of a frame that was read.

    Raises:
        msgspec.ValidationError: One has lists of different lengths, or names what the frame lacks.
    """
    for one in frame.samples:
        if len({len(getattr(one, name)) for name in ("group", "op", *OF_CALLS)}) > 1:
            raise msgspec.ValidationError("lists of different lengths")
        if any(not 0 <= place < len(names) for places, names in ((one.group, frame.groups), (one.op, frame.names))
               for place in places):
            raise msgspec.ValidationError("a group or name that is not there")
    return [SampledStep(**msgspec.structs.asdict(one) | {
        name: [value * 1000 if value >= 0 else UNKNOWN for value in getattr(one, name)] for name in OF_CALLS})
        for one in frame.samples]


def _packed(rows: StepRows) -> PackedRows:
    """Rows in their units; what the other columns tell is left out, which halves what they take."""
    columns = {name: _scaled(rows, name) for name in StepRows.__struct_fields__}
    rests = zip(columns["span_ns"], *(columns[name] for name in PARTS), strict=True)
    columns["backward_ns"] = [_folded(value - _rest(*rest)) if value >= 0 else UNKNOWN
                              for value, rest in zip(columns["backward_ns"], rests, strict=True)]
    spans = columns["span_ns"]
    columns |= {name: _differences(columns[name]) for name in GROWING}
    columns["end_ns"] = [value - span for value, span in zip(columns["end_ns"], spans, strict=True)]
    return PackedRows(**columns)


def _scaled(rows: StepRows, name: str) -> list[int]:
    unit = unit_of(name)
    return [value // unit if value >= 0 else UNKNOWN for value in getattr(rows, name)]


def _differences(values: list[int]) -> list[int]:
    return [value - before for value, before in zip(values, [0, *values], strict=False)]


def _rest(span: int, *parts: int) -> int:
    return max(0, span - sum(part for part in parts if part >= 0))


def _folded(value: int) -> int:
    """Any whole number as one that is not negative (zigzag, as of Protocol Buffers)."""
    return value << 1 if value >= 0 else (-value << 1) - 1


def _unfolded(value: int) -> int:
    return value >> 1 if not value & 1 else -(value + 1 >> 1)


def _unpacked(rows: StepRows) -> StepRows:
    columns: dict[str, list[int]] = {name: getattr(rows, name) for name in StepRows.__struct_fields__}
    columns["end_ns"] = [value + span for value, span in zip(columns["end_ns"], columns["span_ns"], strict=True)]
    columns |= {name: list(accumulate(columns[name])) for name in GROWING}
    rests = zip(columns["span_ns"], *(columns[name] for name in PARTS), strict=True)
    columns["backward_ns"] = [_unfolded(value) + _rest(*rest) if value >= 0 else UNKNOWN
                              for value, rest in zip(columns["backward_ns"], rests, strict=True)]
    return StepRows(**{name: [value * unit_of(name) if value >= 0 else UNKNOWN for value in values]
                       for name, values in columns.items()})


def unit_of(name: str) -> int:
    """By which a column was divided."""
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
