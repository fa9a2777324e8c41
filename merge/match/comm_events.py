"""Reads communication events from a trace of another program."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from distprof.arrays import Flags, Integers
from distprof.merge.match.backend_names import communicates
from distprof.merge.run.traces.trace_identity import TraceIdentity, identity_of
from distprof.merge.scan.chrome_file import ChromeFile, Losses, base_ns_of
from distprof.merge.scan.chunk_reader import ChunkReader
from distprof.merge.scan.engine import ENGINE, Interner, Scanner
from distprof.merge.scan.gunzip import READ_BYTES, Damage
from distprof.merge.scan.json_values import string_of
from distprof.merge.scan.repair import ON_DEVICE, cut_overlong, has_overlong, untimed
from distprof.merge.scan.scanned_columns import NONE, SLICE
from distprof.merge.scan.trace_file import TraceFile

INTEGERS = ("Seq", "In msg nelems", "Out msg nelems", "correlation", "Src Rank", "Dst Rank", "Group size",
            "Global rank start", "Global rank stride")
"""Integer arguments of events that are read."""
TEXTS = ("Comms Id", "Process Group Name", "Process Group Description", "Process Group Ranks", "Collective name",
         "dtype", "In split size", "Input Dims", "Input type")
"""Text arguments of events that are read."""
STEP = re.compile(r"ProfilerStep#([0-9]{1,18})")


class EventKind(IntEnum):
    """Kind of an event."""

    NONE = 0
    KERNEL = 1
    """A kernel on the device that communicates, of NCCL, RCCL or another library."""
    GLOO = 2
    """A gloo thread working on an op, `gloo:all_reduce`."""
    CALL = 3
    """The call, `c10d::allreduce_`."""
    PARAMETERS = 4
    """What a backend records about an op, `record_param_comms`."""
    NOTE = 5
    """The backend issuing the op, `nccl:all_reduce`, with the shapes of its tensors."""
    LAUNCH = 6
    """The launch of any kernel."""
    STEP = 7
    """A step of torch.profiler, `ProfilerStep#3`."""


_NAMES = {
    EventKind.GLOO: re.compile(rb"gloo:\w+"),
    EventKind.CALL: re.compile(rb"(?:c10d|symm_mem)::\w+"),
    EventKind.PARAMETERS: re.compile(rb"record_param_comms$"),
    EventKind.NOTE: re.compile(rb"(?:nccl|rccl):\w+"),
    EventKind.LAUNCH: re.compile(rb"(?:cuda|cu|hip)\w*Launch\w*"),
    EventKind.STEP: re.compile(rb"ProfilerStep#[0-9]+$"),
}
"""The first pattern that matches counts. A name that matches none may be a kernel: some calls are named like
kernels."""
_ON_CPU = ("user_annotation", "cpu_op", "operator")
_CATEGORIES = {
    EventKind.KERNEL: ("kernel",), EventKind.GLOO: _ON_CPU, EventKind.CALL: ("cpu_op", "operator"),
    EventKind.PARAMETERS: _ON_CPU, EventKind.NOTE: _ON_CPU,
    EventKind.LAUNCH: ("cuda_runtime", "cuda_driver", "runtime"), EventKind.STEP: _ON_CPU,
}
"""Categories that events of a kind have: ranges of `nccl:all_reduce` and of steps also appear on the device."""


class CommEvent(NamedTuple):
    """A slice. Times are in ns since the epoch, on the rank's clock."""

    name: str
    thread: int
    """Number of its thread or stream."""
    start_ns: int
    end_ns: int
    integers: Mapping[str, int]
    """Those of `INTEGERS` that it has."""
    texts: Mapping[str, str]
    """Those of `TEXTS` that it has; lists are JSON, possibly cut off."""


@dataclass(slots=True)
class CommEvents:
    """Communication events of a trace."""

    identity: TraceIdentity
    events: dict[EventKind, list[CommEvent]]
    """Events by kind, in order of time; launches are in `launches`."""
    launches: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """Correlation -> time and thread of the launch, for kernels in `events`."""
    damage: Damage | None = None
    losses: Losses = field(default_factory=Losses)
    num_events: int = 0
    """Number of events of all kinds, also those that are not communication."""
    num_overlong: int = 0
    """Number of device slices that were shortened (see `cut_overlong`), communication or not."""
    num_untimed: int = 0
    """Number of device slices that were left out (see `untimed`)."""


def read_events(trace: TraceFile) -> CommEvents:
    """Reads a trace to its end.

    Raises:
        DataError: It is not a trace.
    """
    scanner = ENGINE.new_scanner(integers=INTEGERS, texts=TEXTS)
    reader = ChunkReader(trace, chunk_bytes=READ_BYTES)
    file, num_events = ChromeFile(trace.name, reader, scanner), 0
    found, launches, on_device = list[tuple[EventKind, Any]](), list[Any](), list[Any]()
    kinds, sides = np.empty(0, np.uint8), np.zeros((len(EventKind), 0), bool)
    for _ in file.scanned():
        num_events += scanner.num_rows
        kinds = np.append(kinds, [_kind_of(name) for name in scanner.names.texts(len(kinds))]).astype(np.uint8)
        sides = _sides(scanner.categories)
        kind = kinds[scanner.column("name")]
        start, duration = scanner.column("ts_ns"), scanner.column("dur_ns")
        wanted = (kind != EventKind.NONE) & (scanner.column("phase") == SLICE) & (start != NONE) & (duration >= 0)
        on_device.append(_on_device(scanner))
        rows = np.flatnonzero(wanted)
        rows = rows[sides[kind[rows], scanner.column("category")[rows]]]
        is_launch = kind[rows] == EventKind.LAUNCH
        found += [(EventKind(int(kind[row])), _raw(scanner, row)) for row in rows[~is_launch].tolist()]
        at = rows[is_launch]
        launches.append(np.stack([scanner.integers["correlation"][at], start[at], scanner.column("thread")[at]]))
    base_ns = base_ns_of(file.metadata)
    names, texts = (list(map(string_of, interner.texts())) for interner in (scanner.names, scanner.texts))
    events: dict[EventKind, list[CommEvent]] = {kind: [] for kind in EventKind}
    launched_by = [names[number] for number in np.flatnonzero(kinds == EventKind.LAUNCH).tolist()]
    slices = np.concatenate([np.empty((3, 0), np.int64), *on_device], axis=1)  # rows: thread, start, duration
    lost = untimed(*slices[1:])
    none = set(zip(*slices[:2, lost].tolist(), strict=True))
    cut = _cut(*slices[:, ~lost]) if has_overlong(launched_by) else {}
    for kind_of_row, (name, thread, start_ns, duration_ns, *more) in found:
        if kind_of_row is EventKind.KERNEL:
            if (thread, start_ns) in none:
                continue
            duration_ns = cut.get((thread, start_ns), duration_ns)
        events[kind_of_row].append(_event((name, thread, start_ns, duration_ns, *more), base_ns, names, texts))
    for some in events.values():
        some.sort(key=lambda event: (event.start_ns, event.end_ns))
    wanted_ids = {event.integers.get("correlation") for event in events[EventKind.KERNEL]} - {0}  # 0 is not an id
    return CommEvents(identity=identity_of(file.metadata), events=events,
                      launches=dict(_launches(launches, base_ns, wanted_ids)),
                      damage=reader.damage, losses=file.losses, num_events=num_events, num_overlong=len(cut),
                      num_untimed=int(lost.sum()))


def _kind_of(name: bytes) -> EventKind:
    found = next((kind for kind, pattern in _NAMES.items() if pattern.match(name)), EventKind.NONE)
    is_kernel = found is EventKind.NONE and communicates(name.decode("utf-8", "replace"))
    return EventKind.KERNEL if is_kernel else found


def _sides(categories: Interner) -> Flags:
    """Returns by kind and category whether an event may be of the kind; the last column: events without category."""
    texts = [text.decode("utf-8", "replace").lower() for text in categories.texts()]
    return np.array([[text in _CATEGORIES.get(kind, ()) for text in texts] + [False] for kind in EventKind], bool)


def _on_device(scanner: Scanner) -> Integers:
    """Returns thread, start and duration of the device slices in the last scan."""
    is_device = np.array([text.lower() in ON_DEVICE for text in scanner.categories.texts()] + [False], bool)
    start, duration = scanner.column("ts_ns"), scanner.column("dur_ns")
    rows = is_device[scanner.column("category")] & (scanner.column("phase") == SLICE) & (start != NONE)
    return np.stack([column[rows & (duration != NONE)] for column in (scanner.column("thread"), start, duration)])


def _cut(thread: Integers, start: Integers, duration: Integers) -> dict[tuple[int, int], int]:
    """Returns (thread, start) -> new duration of the slices that were shortened."""
    found, places = cut_overlong(thread, start, duration)
    return dict(zip(zip(thread[places].tolist(), start[places].tolist(), strict=True), found[places].tolist(),
                    strict=True))


def _raw(scanner: Scanner, row: int) -> tuple[Any, ...]:
    return (int(scanner.arrays["name"][row]), int(scanner.arrays["thread"][row]), int(scanner.arrays["ts_ns"][row]),
            int(scanner.arrays["dur_ns"][row]), [int(scanner.integers[key][row]) for key in INTEGERS],
            [int(scanner.interned[key][row]) for key in TEXTS])


def _event(raw: tuple[Any, ...], base_ns: int, names: list[str], texts: list[str]) -> CommEvent:
    name, thread, start_ns, duration_ns, integers, interned = raw
    return CommEvent(
        name=names[name] if name >= 0 else "", thread=thread, start_ns=start_ns + base_ns,
        end_ns=start_ns + duration_ns + base_ns,
        integers={key: value for key, value in zip(INTEGERS, integers, strict=True) if value != NONE},
        texts={key: texts[value] for key, value in zip(TEXTS, interned, strict=True) if value >= 0})


def _launches(parts: list[Integers], base_ns: int, wanted: set[int | None]) -> Iterator[tuple[int, tuple[int, int]]]:
    if not parts:
        return
    correlation, start, thread = np.concatenate(parts, axis=1)
    rows = np.isin(correlation, [number for number in wanted if number is not None])
    for number, start_ns, where in zip(*(column[rows].tolist() for column in (correlation, start, thread)),
                                       strict=True):
        yield number, (start_ns + base_ns, where)
