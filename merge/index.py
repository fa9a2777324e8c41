"""The first pass over a rank's trace: its chunks come in, what has to be known before anything is written goes out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from distprof.merge.arrows import hanging
from distprof.merge.chrome_file import READ_BYTES, ChromeFile, Losses
from distprof.merge.engine import BAD_TIME, NONE, Interner, Scanner, Text, find_overlaps
from distprof.merge.gunzip import Damage
from distprof.merge.repair import repaired
from distprof.merge.selection import Selection
from distprof.merge.streams import ChunkReader, TraceFile

SLICE = ord("X")
META = ord("M")
TOLERANCE_NS = 1000
"""A slice that sticks out of the one around it by no more is cut: rounding, not another order of things."""
MAX_LANES = 16
FLOWS = np.isin(np.arange(256), np.frombuffer(b"stf", np.uint8))
"""By phase: ends of arrows."""
ALL = Selection()
DAY_NS = 86_400 * 10**9
NAMES_OF = frozenset(("process_name", "process_labels", "process_sort_index", "thread_name", "thread_sort_index"))
"""Metadata events that the merge writes anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """A metadata event that names a process or thread."""

    kind: str
    pid: str
    tid: str
    args: dict[str, Any]


@dataclass(slots=True, kw_only=True)
class Index:
    """What the first pass learned of a file."""

    metadata: dict[str, Any] = field(default_factory=dict)
    losses: Losses = field(default_factory=Losses)
    damage: Damage | None = None
    """What is wrong with the file around the text."""
    num_bytes: int = 0
    num_events: int = 0
    """Whole events, metadata included."""
    bad_times: int = 0
    """Events without a time that is a finite number; they are left out."""
    base_ns: int = 0
    """Added to every time of the file."""
    first_ns: int | None = None
    """First event, base included; events that lie a day or more before the middle one do not count."""
    last_ns: int | None = None
    threads: list[tuple[str, str]] = field(default_factory=list)
    """Process and thread as the file names them, JSON text, in order of appearance."""
    meta: list[Meta] = field(default_factory=list)
    phases: Counter[str] = field(default_factory=Counter)
    steps: list[tuple[str, int, int]] = field(default_factory=list)
    """Steps that torch.profiler marked: name, start, end; base included."""
    side_rows: Any = None
    """Event numbers that leave their lane, int64, ascending; numbers count all events of the file."""
    side_lanes: Any = None
    """Lane of each, from 1 on; int32."""
    cut_rows: Any = None
    """Event numbers of slices whose end is cut, int64, ascending."""
    cut_ns: Any = None
    """Their new durations."""

    hanging_rows: Any = None
    """Event numbers of ends of arrows that are left out: they lie in no slice, or lack their other end; int64."""
    num_left_out: int = 0
    """Events that the selection leaves out."""

    @property
    def num_lanes(self) -> int:
        """Lanes that threads need at most, their own included."""
        return int(self.side_lanes.max()) + 1 if len(self.side_lanes) else 1


def index_trace(trace: TraceFile, selection: Selection = ALL, *, base_ns: int = 0,
                strict: bool = False) -> Index:
    """Reads a trace once.

    Args:
        trace: Where it lies.
        selection: What of it will be written.
        base_ns: Added to its times to see what the selection says; as an earlier pass learned it.
        strict: Looks into `args` too, where damage may hide.

    Raises:
        DataError: It is no Chrome trace.
    """
    scanner = Scanner(skims=not strict)
    reader = ChunkReader(trace, chunk_bytes=READ_BYTES)
    file = ChromeFile(trace.name, reader, scanner)
    index, kept = Index(metadata=file.metadata, losses=file.losses), _Kept(scanner, selection, base_ns)
    steps = _Steps(scanner)
    for text in file.scanned():
        phase, flags = scanner.column("phase"), scanner.column("flags")
        index.bad_times += int(((flags & BAD_TIME) != 0).sum())
        for code, number in enumerate(np.bincount(phase, minlength=1)):
            if number:
                index.phases[chr(code)] += int(number)
        index.meta += _meta(scanner, text, np.flatnonzero(phase == META))
        steps.look()
        kept.add(text, index.num_events)
        index.num_events += scanner.num_rows
    index.num_bytes, index.damage = file.num_bytes, reader.damage
    index.base_ns = _integer(file.metadata.get("baseTimeNanoseconds"))
    index.threads = [_thread(key) for key in scanner.threads.texts()]
    index.steps = [(step, start + index.base_ns, end + index.base_ns) for step, start, end in steps.found]
    kept.finish(index)
    return index


def _meta(scanner: Scanner, text: Text, rows: Any) -> Iterator[Meta]:
    for row in rows.tolist():
        try:
            event = json.loads(repaired(bytes(text[scanner.arrays["start"][row]:scanner.arrays["end"][row]])))
        except (ValueError, RecursionError):
            continue
        kind, args = event.get("name"), event.get("args")
        if kind in NAMES_OF and isinstance(args, dict):
            yield Meta(kind=kind, pid=str(event.get("pid", "")), tid=str(event.get("tid", "")), args=args)


def _thread(key: bytes) -> tuple[str, str]:
    """JSON texts of a pid and a tid, a blank between -> both as text; a string may hold blanks, a number may not."""
    text = key.decode("utf-8", "replace")
    end = text.index('" ', 1) + 1 if text.startswith('"') and '" ' in text[1:] else text.index(" ")
    return _plain(text[:end]), _plain(text[end + 1:])


def _plain(text: str) -> str:
    if not text:
        return ""
    try:
        return str(msgspec.json.decode(text))
    except msgspec.DecodeError:
        return text


def _integer(value: Any) -> int:
    try:
        return int(value or 0)
    except (TypeError, ValueError):
        return 0


class _Steps:
    """Finds the slices that torch.profiler marks steps with."""

    def __init__(self, scanner: Scanner) -> None:
        self.found: list[tuple[str, int, int]] = []
        self._scanner = scanner
        self._known = 0
        self._names: dict[int, str] = {}

    def look(self) -> None:
        """Through the rows of the last scan."""
        scanner = self._scanner
        for number, name in enumerate(scanner.names.texts(self._known), self._known):
            if name.startswith(b"ProfilerStep#"):
                self._names[number] = name.decode("utf-8", "replace")
        self._known = len(scanner.names)
        if not self._names:
            return
        names, starts, durations = (scanner.column(column) for column in ("name", "ts_ns", "dur_ns"))
        for row in np.flatnonzero(np.isin(names, list(self._names)) & (scanner.column("phase") == SLICE)).tolist():
            if starts[row] != NONE and durations[row] != NONE:
                self.found.append((self._names[int(names[row])], int(starts[row]), int(starts[row] + durations[row])))


class _Kept:
    """Keeps 28 bytes of each slice and each end of an arrow, to see what overlaps and what hangs in the air."""

    def __init__(self, scanner: Scanner, selection: Selection, base_ns: int) -> None:
        self._scanner, self._selection, self._base_ns = scanner, selection, base_ns
        self._ids = Interner()
        self._slices: list[tuple[Any, ...]] = []
        self._flows: list[tuple[Any, ...]] = []
        self._others: list[Any] = []
        self._num_left_out = 0

    def add(self, text: Text, first: int) -> None:
        """Takes in the rows of the last scan, the first of which has this number."""
        scanner = self._scanner
        start, phase, thread = (scanner.column(name) for name in ("ts_ns", "phase", "thread"))
        timed = (start != NONE) & ((scanner.column("flags") & BAD_TIME) == 0) & (phase != META)
        is_slice, is_flow = timed & (phase == SLICE), timed & FLOWS[phase]
        if not self._selection.is_all:
            keep = self._selection.kept(
                start + self._base_ns, scanner.column("dur_ns"), scanner.column("category"), is_slice,
                self._selection.unwanted_categories(scanner.categories))
            self._num_left_out += int((timed & ~keep & ~is_flow).sum())
            is_slice &= keep
        rows = np.flatnonzero(is_slice)
        self._slices.append((rows + first, start[rows], np.maximum(scanner.column("dur_ns")[rows], 0), thread[rows]))
        rows = np.flatnonzero(is_flow)
        if len(rows):
            self._flows.append((rows + first, start[rows], scanner.links(text, self._ids)[rows], thread[rows],
                                phase[rows], scanner.column("name")[rows], scanner.column("category")[rows]))
        self._others.append(start[timed & ~is_slice].copy())

    def finish(self, index: Index) -> None:
        """Says what the whole file is like."""
        rows, start, duration, thread = _joined(self._slices, 4)
        times = np.concatenate([start, *self._others])
        self._slices, self._others = [], []
        index.num_left_out = self._num_left_out
        if len(times):
            likely = times[times > np.median(times) - DAY_NS]
            index.first_ns = int(likely.min()) + index.base_ns
            index.last_ns = int(max(times.max(), (start + duration).max(initial=times.max()))) + index.base_ns
        flows, at, link, on, phase, name, category = _joined(self._flows, 7)
        # of one id: name and category make different arrows of it
        _, key = np.unique(np.stack([link, name, category]), axis=1, return_inverse=True) if len(flows) else (0, link)
        index.hanging_rows = flows[hanging(phase, key, on, at, (thread, start, start + duration))]
        order = _by_thread_and_start(thread, start, duration)
        lane, cut = find_overlaps(order, start, duration, thread.astype(np.int32), tolerance=TOLERANCE_NS,
                                  max_lanes=MAX_LANES)
        moved, shortened = np.flatnonzero(lane), np.flatnonzero(cut >= 0)
        index.side_rows, index.side_lanes = rows[moved], lane[moved]
        index.cut_rows, index.cut_ns = rows[shortened], cut[shortened]


def _joined(parts: list[tuple[Any, ...]], width: int) -> list[Any]:
    return [np.concatenate([part[column] for part in parts]) if parts else np.empty(0, np.int64)
            for column in range(width)]


def _by_thread_and_start(thread: Any, start: Any, duration: Any) -> Any:
    """Row numbers by thread, start, and longest first among those that start together."""
    if not len(start):
        return np.empty(0, np.int64)
    since = start - start.min()
    bits = int(since.max()).bit_length()
    if bits + int(thread.max()).bit_length() > 62:
        return np.lexsort((-duration, start, thread)).astype(np.int64)
    key = (thread.astype(np.int64) << bits) | since
    order = np.argsort(key, kind="stable")  # most is in order already, which this kind knows to use
    ordered = key[order]
    ties = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(ties):
        rows = np.union1d(ties, ties + 1)
        some = order[rows]
        order[rows] = some[np.lexsort((-duration[some], key[some]))]
    return order
