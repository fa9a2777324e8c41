"""`watch-000.bin`, `watch-001.bin`, ... of a rank: all its steps outside the passes, appended while the job runs.

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
"""Stands for an unknown value in a column."""
GOLDEN = 0x9E3779B97F4A7C15
"""2**64 divided by the golden ratio."""
MOST_SPARSE = 20
"""Largest exponent for `is_sampled`: at least 1 in 2**20 steps is sampled."""
SUMMED = ("span_ns", "data_ns", "forward_ns", "backward_ns", "optimizer_ns", "device_ns", "cpu_ns", "switches", "gc_ns")
"""Columns that are summed when rows are joined."""


class StepRows(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Steps of a rank; each row is one step or several consecutive short steps. All columns have the same length.

    The phases of a row (data, forward, backward, optimizer) add up to its span, unless some are `UNKNOWN`. If a device
    reports times, they are those of its stream: the span is divided as some steps of the row were divided there.
    """

    first_step: list[int] = []
    num_steps: list[int] = []
    """Number of steps in the row, at least 1."""
    end_ns: list[int] = []
    """When the last step ended: since the epoch, by the clock of the rank."""
    span_ns: list[int] = []
    """Total time of the steps, by a monotonic clock."""
    longest_ns: list[int] = []
    """Time of the longest step."""
    longest_step: list[int] = []
    """Number of the longest step."""
    data_ns: list[int] = []
    """From the start of each step, which is the end of the previous one, to its first forward call."""
    forward_ns: list[int] = []
    """Inside forward calls of root modules."""
    backward_ns: list[int] = []
    """The rest: between forward calls, and from the last one to the optimizer."""
    optimizer_ns: list[int] = []
    """Inside optimizers."""
    device_ns: list[int] = []
    """Time between marks on the device's stream at the ends of steps; they are read later, without waiting for them."""
    cpu_ns: list[int] = []
    """CPU time of the thread that runs the steps."""
    switches: list[int] = []
    """How often that thread was preempted (involuntary context switches)."""
    gc_ns: list[int] = []
    """Time in Python's garbage collection."""
    host_bytes: list[int] = []
    """Resident memory of the process at the end of the row, or up to some seconds before."""
    device_bytes: list[int] = []
    """Device memory used by tensors, at the same time."""


class SampledStep(msgspec.Struct, kw_only=True):
    """A step in which communication was labelled, one value per call in the order of issue.

    Ranks sample the same steps, except that some ranks may sample fewer of them. The N-th call of a group is the same
    call on all its ranks. Times are those of the host if communication runs on the host, otherwise those of the stream.
    """

    step: int
    start_ns: int
    """Since the epoch, by the clock of the rank."""
    span_ns: int
    num_calls: int
    """Number of calls; larger than the number of listed calls if there were too many."""
    group: list[int]
    """Indices into `Frame.groups`."""
    op: list[int]
    """Indices into `Frame.names`."""
    arrived_ns: list[int]
    """From the start of the step until the rank, or its stream, reached the call."""
    took_ns: list[int]
    """From then until the call ended; `UNKNOWN` if not measured."""
    blocked_ns: list[int]
    """How long the thread that runs the steps, or the stream, was blocked by it; `UNKNOWN` if not measured."""


class Note(msgspec.Struct, kw_only=True):
    """Something that happened between two steps."""

    time_ns: int
    step: int
    kind: str
    """window_asked, window_began, window_ended, window_missed, evaluation, checkpoint, thinned, ended."""
    text: str = ""


class Frame(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What is appended to the file at once."""

    rows: StepRows = msgspec.field(default_factory=StepRows)
    samples: list[SampledStep] = []
    notes: list[Note] = []
    groups: list[tuple[str, list[int]]] = []
    """Process groups of the samples: torch's name and the ranks."""
    names: list[str] = []
    """Names of ops in the samples."""


def is_sampled(step: int, exponent: int) -> bool:
    """Returns whether communication is labelled in a step: 1 in 2**exponent steps.

    The golden-ratio sequence (Knuth, volume 3, 6.4) spreads these steps evenly, without any period that a job may have.
    The steps of a larger exponent are a subset of those of a smaller one, so ranks with different exponents share
    steps.
    """
    return (step * GOLDEN & 0xFFFFFFFFFFFFFFFF) >> 64 - exponent == 0 if exponent else True


def sparseness(steps: list[int]) -> int:
    """Returns the largest exponent for which all of these steps are sampled."""
    return next((exponent for exponent in range(MOST_SPARSE, 0, -1)
                 if all(is_sampled(step, exponent) for step in steps)), 0)


class PackedRows(StepRows, kw_only=True, array_like=True):
    """Rows as they are stored, without column names; new columns must be added at the end."""


class _PackedStep(SampledStep, kw_only=True, array_like=True):
    """A sampled step as it is stored, without field names."""


class _Packed(Frame, kw_only=True, omit_defaults=True):
    """A frame as it is stored."""

    rows: PackedRows = msgspec.field(default_factory=PackedRows)
    samples: list[_PackedStep] = []  # type: ignore[assignment]  # it is never read as a Frame
    groups: list[tuple[str, str]] = []  # type: ignore[assignment]  # as text: lists of thousands are long


TIMES = ("end_ns", "span_ns", "longest_ns", "data_ns", "forward_ns", "backward_ns", "optimizer_ns", "device_ns",
         "cpu_ns", "gc_ns")
"""Columns that are stored in microseconds."""
GROWING = ("first_step", "end_ns", "longest_step", "host_bytes", "device_bytes")
"""Columns that are stored as differences."""
IN_KIB = ("host_bytes", "device_bytes")
PARTS = ("data_ns", "forward_ns", "optimizer_ns")
"""`backward_ns` is usually the span minus these parts: only the deviation from that is stored."""
OF_CALLS = ("arrived_ns", "took_ns", "blocked_ns")
"""Lists of a sampled step that are stored in microseconds."""


def encoded(frame: Frame) -> bytes:
    """Encodes a frame; times are rounded down to 1 microsecond, memory to 1 KiB."""
    packed = _Packed(rows=_packed(frame.rows), samples=_thousandths(frame.samples), notes=frame.notes,
                     groups=[(name, text_of(ranks)) for name, ranks in frame.groups], names=frame.names)
    return framed(MARK, msgspec.msgpack.encode(packed))


def frames(content: bytes) -> Iterator[tuple[int, Frame]]:
    """Yields the frames in these bytes, each with the offset of its end; damaged frames are skipped.

    Bytes after the last offset may be the start of a frame that is still being written.
    """
    for end, frame, rows in packed_frames(content):
        try:
            yield end, msgspec.structs.replace(frame, rows=_unpacked(rows))
        except OverflowError:
            continue


def packed_frames(content: bytes) -> Iterator[tuple[int, Frame, PackedRows]]:
    """Like `frames`, with rows as they are stored, for callers that unpack many frames at once."""
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
    """Returns the samples of a decoded frame.

    Raises:
        msgspec.ValidationError: A sample has lists of different lengths, or an index out of range.
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
    """Returns rows in their stored units, without what follows from other columns; this halves their size."""
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
    """Encodes an integer as a non-negative one (zigzag encoding, as in Protocol Buffers)."""
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
    """Returns the number by which a column is divided when it is stored."""
    return 1000 if name in TIMES else 1024 if name in IN_KIB else 1


def joined(rows: StepRows, first: int, last: int) -> dict[str, Any]:
    """Joins the rows from `first` to `last`, both included, into one row."""
    some = slice(first, last + 1)
    row: dict[str, Any] = {name: getattr(rows, name)[last] for name in StepRows.__struct_fields__}
    row["first_step"], row["num_steps"] = rows.first_step[first], sum(rows.num_steps[some])
    longest = max(range(first, last + 1), key=lambda place: rows.longest_ns[place])
    row["longest_ns"], row["longest_step"] = rows.longest_ns[longest], rows.longest_step[longest]
    for name in SUMMED:
        values = getattr(rows, name)[some]
        row[name] = UNKNOWN if UNKNOWN in values else sum(values)
    return row
