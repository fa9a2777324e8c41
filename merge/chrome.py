"""One rank's Chrome trace for the merged one: a file comes in, a gzip member of rewritten events goes out.

Events pass through as bytes; only pid, tid, ts and linking ids are touched. `args` and everything else are copied.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
from isal import igzip, igzip_lib
from msgspec import UNSET, Raw, UnsetType

from distprof.errors import DataError
from distprof.merge.clock import UNSHIFTED, RankClock
from distprof.merge.lanes import Lanes

Field = Raw | UnsetType
LINKED = frozenset("stfbenSTFNOD")
"""Phases whose `id` joins events: flows, async events, objects."""
BATCH = 1 << 14
"""Events encoded at a time."""


class Event(msgspec.Struct, omit_defaults=True, gc=False, forbid_unknown_fields=True):
    """A Chrome event with every field the format knows; what is not typed is copied as it is."""

    ph: str
    cat: Field = UNSET
    name: Field = UNSET
    pid: int | str | UnsetType = UNSET
    tid: int | str | UnsetType = UNSET
    ts: Field = UNSET
    dur: Field = UNSET
    id: Field = UNSET
    bind_id: Field = UNSET
    s: Field = UNSET
    bp: Field = UNSET
    args: Field = UNSET
    tts: Field = UNSET
    tdur: Field = UNSET
    flow_in: Field = UNSET
    flow_out: Field = UNSET
    id2: Field = UNSET
    scope: Field = UNSET
    cname: Field = UNSET
    sf: Field = UNSET
    stack: Field = UNSET
    esf: Field = UNSET
    estack: Field = UNSET
    use_async_tts: Field = UNSET
    v: Field = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTrace:
    """What one worker needs to know of a rank."""

    path: Path
    rank: int
    title: str
    """`rank 3 | tp1 dp1 | host7`."""
    origin_ns: int
    """The instant that becomes 0 in the merged trace, on the common clock."""
    clock: RankClock = UNSHIFTED
    """From the rank's clock to the common one."""


@dataclass(slots=True, kw_only=True)
class Member:
    """A rank's part of the merged trace."""

    path: Path
    rank: int
    num_slices: int = 0
    num_events: int = 0
    num_moved: int = 0
    """Events before the origin, moved onto it."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """Top-level keys of the rank's file except the events."""


def rewrite(trace: RankTrace, output: Path) -> Member:
    """Writes the events of a rank, without brackets around them, as one gzip member.

    Raises:
        DataError: The file is not a Chrome trace.
    """
    top = _read(trace.path)
    events = _events(top.pop("traceEvents", Raw(b"[]")), trace.path)
    base_ns = int(bytes(top.get("baseTimeNanoseconds", b"0")))
    member = Member(path=output, rank=trace.rank,
                    metadata={key: msgspec.json.decode(value) for key, value in top.items()})
    lanes = Lanes(rank=trace.rank, title=trace.title)
    for event in events:
        if event.ph == "M":
            _learn(lanes, event)
    shifted = _shifted((event for event in events if event.ph != "M"), lanes, base_ns, trace, member)
    # no name and no time in the header: the same input gives the same bytes
    with output.open("wb") as raw, igzip.IGzipFile("", "wb", compresslevel=1, fileobj=raw, mtime=0) as file:
        encoder = msgspec.json.Encoder()
        for index, lines in enumerate(_batches(shifted)):
            file.write((b",\n" if index else b"") + b",\n".join(map(encoder.encode, lines)))
        names = [encoder.encode(event) for event in lanes.describe()]
        if names:
            file.write((b",\n" if member.num_events else b"") + b",\n".join(names))
    return member


def _batches(events: Iterator[Event]) -> Iterator[list[Event]]:
    batch: list[Event] = []
    for event in events:
        batch.append(event)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _read(path: Path) -> dict[str, Raw]:
    try:
        content = path.read_bytes()
        text = igzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
        return msgspec.json.decode(text, type=dict[str, Raw])
    except (msgspec.MsgspecError, gzip.BadGzipFile, EOFError, igzip_lib.IsalError, OSError) as error:  # type: ignore[misc]
        raise DataError(f"expected a Chrome trace in {path}, found a damaged file: {error}",
                        hint="record the rank again, or remove its trace.json.gz to merge the rest") from error


def _events(raw: Raw, path: Path) -> list[Event]:
    try:
        return msgspec.json.decode(raw, type=list[Event])
    except msgspec.ValidationError as error:
        raise DataError(f"expected Chrome events in {path}, found: {error}") from error


def _learn(lanes: Lanes, event: Event) -> None:
    """Takes names and order of processes and threads out of a metadata event."""
    name, args = _text(event.name), msgspec.json.decode(event.args) if isinstance(event.args, Raw) else {}
    key = str(event.pid), str(event.tid)
    if name == "process_labels":
        lanes.labels.setdefault(key[0], str(args.get("labels")))
    elif name == "process_name":
        lanes.programs.setdefault(key[0], str(args.get("name")))
    elif name == "thread_name":
        lanes.name_thread(*key, str(args.get("name")))
    elif name == "thread_sort_index":
        lanes.sort_indices.setdefault(key, int(args.get("sort_index", 0)))


def _shifted(events: Iterable[Event], lanes: Lanes, base_ns: int, trace: RankTrace, member: Member) -> Iterator[Event]:
    for event in events:
        thread = lanes.thread("" if event.pid is UNSET else event.pid, "" if event.tid is UNSET else event.tid)
        event.pid, event.tid = thread.pid, thread.tid
        if isinstance(event.ts, Raw):
            start_ns = base_ns + nanoseconds(bytes(event.ts))
            ts_ns = trace.clock.shift(start_ns) - trace.origin_ns
            if isinstance(event.dur, Raw) and trace.clock.drift_ppm:
                # ends move as starts do: a slice stays inside the one around it
                end_ns = trace.clock.shift(start_ns + nanoseconds(bytes(event.dur))) - trace.origin_ns
                event.dur = Raw(b"%d.%03d" % divmod(end_ns - ts_ns, 1000))
            member.num_moved += ts_ns < 0
            event.ts = Raw(b"%d.%03d" % divmod(max(ts_ns, 0), 1000))
        if isinstance(event.id, Raw) and event.ph in LINKED:
            event.id = Raw(b"%d" % lanes.link(_text(event.id)))
        if isinstance(event.bind_id, Raw):
            event.bind_id = Raw(b"%d" % lanes.link(_text(event.bind_id)))
        if event.ph == "i" and _text(event.s) == "g":
            event.s = Raw(b'"p"')  # a global instant would cross the lanes of all ranks
        member.num_events += 1
        member.num_slices += event.ph == "X"
        yield event


def _text(value: Field) -> str:
    return bytes(value).decode().strip('"') if isinstance(value, Raw) else ""


def nanoseconds(microseconds: bytes) -> int:
    """Exact ns of a JSON number of microseconds: a double would lose them at epoch size."""
    whole, _, fraction = microseconds.partition(b".")
    if whole.isdigit() and (not fraction or fraction.isdigit()):
        return int(whole) * 1000 + int(fraction[:3].ljust(3, b"0"))
    return int((Decimal(microseconds.decode().strip('"')) * 1000).to_integral_value())
