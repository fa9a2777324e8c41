"""The second pass over a rank's trace: its chunks come in, a gzip member of merged events and a table go out.

Events pass through as bytes; only pid, tid, ts, linking ids and the end of slices that stick out are touched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from isal import isal_zlib

from distprof.merge.chrome.drawing import DrawnCollective, DrawnSlice, collective_events, slice_event
from distprof.merge.chrome.events_table import EventTable, scanner_for_table
from distprof.merge.chrome.numbering import NUMBERS_PER_RANK, Lanes, NumberedThread
from distprof.merge.chrome.selection import EventSelection
from distprof.merge.chrome.survey import ALL, NAMES_OF, Survey, survey_trace, timeless
from distprof.merge.clock.model import RankClock
from distprof.merge.scan.chrome_file import ChromeFile, Losses
from distprof.merge.scan.chunk_reader import ChunkReader
from distprof.merge.scan.engine import ENGINE, Scanner
from distprof.merge.scan.event_phases import BEGIN, FLOWS, META, PAIRED, SLICE
from distprof.merge.scan.gunzip import READ_BYTES
from distprof.merge.scan.scanned_columns import NONE, Text
from distprof.merge.scan.trace_file import TraceFile

IDS_PER_RANK = 1 << 32
"""Flow and async ids of a rank: with fewer than 2^20 ranks they are below those of arrows between ranks."""
LEVEL = 1
GZIP = 31
"""wbits of a deflate stream with a gzip header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlan:
    """What the second pass needs to know of a rank."""

    trace: TraceFile
    rank: int
    title: str
    """`rank 3 | tp1 dp1 | host7`."""
    survey: Survey
    clock: RankClock
    origin_ns: int
    """The instant of the common clock that becomes 0."""
    tags: dict[str, int]
    steps: tuple[Any, Any, Any]
    """Start, end and number of the rank's steps, on the rank's clock."""
    numbers: int = NUMBERS_PER_RANK
    selection: EventSelection = ALL
    table_metadata: dict[str, str] = field(default_factory=dict)
    collectives: list[DrawnCollective] = field(default_factory=list)
    """What is drawn of communication."""


@dataclass(slots=True, kw_only=True)
class Member:
    """A rank's part of the merged trace."""

    path: Path
    rank: int
    num_slices: int = 0
    num_events: int = 0
    num_read: int = 0
    """Events of the rank's own trace, metadata included."""
    num_bytes: int = 0
    """Text of it, decompressed."""
    num_moved: int = 0
    """Events before the origin, moved onto it."""
    num_side: int = 0
    """Slices that partly overlap another one of their thread, and stand in a lane beside it."""
    num_cut: int = 0
    """Slices whose end was cut, by a microsecond at most where there was room beside them."""
    num_left_out: int = 0
    """Events that the selection left out."""
    num_hanging: int = 0
    """Ends of arrows left out: they lie in no slice, or lack their other end."""
    num_bad_times: int = 0
    """Events without a time or a phase, left out."""
    num_without_duration: int = 0
    """Slices without a duration, which got 0."""
    losses: Losses = field(default_factory=Losses)
    metadata: dict[str, Any] = field(default_factory=dict)
    """Top-level keys of the rank's file except the events."""

    @property
    def num_repaired(self) -> int:
        """Events that were no strict JSON."""
        return self.losses.repaired_events


def rewrite(plan: RankPlan, output: Path, table: Path | None = None) -> Member:
    """Writes the events of a rank, without brackets around them, as one gzip member; and as a table.

    Raises:
        DataError: The file is no Chrome trace.
    """
    if not plan.selection.is_all:
        plan = replace(plan, survey=survey_trace(
            plan.trace, plan.selection, base_ns=plan.survey.base_ns))
    try:
        member = _rewrite(plan, output, table)
        if _is_same(member, plan.survey):
            return member
    except _OtherThreadsError:
        pass
    # the first pass skims: damage within args made it read other events
    plan = replace(plan, survey=survey_trace(
        plan.trace, plan.selection, base_ns=plan.survey.base_ns, strict=True))
    return _rewrite(plan, output, table)


class _OtherThreadsError(Exception):
    """The second pass met a thread that the first did not."""


def _is_same(member: Member, survey: Survey) -> bool:
    found, before = member.losses, survey.losses
    return (member.num_read, found.damaged_events, found.lost_bytes) == (
        survey.num_events, before.damaged_events, before.lost_bytes)


def _rewrite(plan: RankPlan, output: Path, table: Path | None) -> Member:
    scanner = scanner_for_table() if table is not None else ENGINE.new_scanner()
    file = ChromeFile(plan.trace.name, ChunkReader(plan.trace, chunk_bytes=READ_BYTES), scanner)
    layout = plan.survey.layout
    member = Member(path=output, rank=plan.rank, losses=file.losses, metadata=file.metadata,
                    num_side=layout.num_side, num_cut=len(layout.cut_rows) + len(layout.moved_rows),
                    num_hanging=len(layout.hanging_rows), num_left_out=layout.num_left_out)
    lanes = lanes_of(plan)
    renumber, events = _Renumber(plan, scanner, lanes, member), None
    if table is not None:
        events = EventTable(table, scanner, tags=plan.tags, threads=renumber.described(), steps=_on_common(plan),
                            metadata=plan.table_metadata)
    try:
        with output.open("wb") as raw:
            # no name and no time in the header: the same input gives the same bytes
            packer = isal_zlib.compressobj(LEVEL, wbits=GZIP)
            for part in _parts(file, renumber, events, lanes):
                packed = packer.compress(part)
                if packed:
                    raw.write(packed)
            raw.write(packer.flush())
    finally:
        if events is not None:
            events.close()
    member.num_bytes = file.num_bytes
    return member


def _parts(file: ChromeFile, renumber: _Renumber, events: EventTable | None,
           lanes: Lanes) -> Iterator[bytes | memoryview]:
    between = b""
    for text in file.scanned():
        part = renumber(text, events)
        if part:
            yield between
            yield part
            between = b",\n"
    drawn = collective_events(renumber.plan.collectives, lanes, renumber.plan.origin_ns)
    extras = [*_steps(renumber.plan, lanes), *drawn, *lanes.describe()]
    if extras and between:
        yield between + b",\n".join(map(msgspec.json.encode, extras))


def _steps(plan: RankPlan, lanes: Lanes) -> Iterator[dict[str, object]]:
    """Slices for the steps that distprof told apart; torch.profiler draws those it was told of itself."""
    if plan.survey.steps or plan.survey.first_ns is None or plan.survey.last_ns is None:
        return
    for start, end, number in zip(*(column.tolist() for column in plan.steps), strict=True):
        inside = plan.selection.windows_ns is None or any(
            start < last and end > first for first, last in plan.selection.windows_ns)
        if inside and end > plan.survey.first_ns and start < plan.survey.last_ns:
            thread = lanes.extra("steps")
            step = DrawnSlice(f"step {number}", int(plan.clock.to_common(start)), int(plan.clock.to_common(end)))
            yield slice_event(step, thread.pid, thread.tid, plan.origin_ns)


def lanes_of(plan: RankPlan) -> Lanes:
    """Names that the trace gives to its processes and threads."""
    lanes = Lanes(rank=plan.rank, title=plan.title, numbers=plan.numbers)
    for meta in plan.survey.meta:
        if meta.kind == "process_labels":
            lanes.labels.setdefault(meta.pid, str(meta.args.get("labels")))
        elif meta.kind == "process_name":
            lanes.programs.setdefault(meta.pid, str(meta.args.get("name")))
        elif meta.kind == "thread_name":
            lanes.name_thread(meta.pid, meta.tid, str(meta.args.get("name")))
        elif meta.kind == "thread_sort_index" and isinstance(meta.args.get("sort_index"), int):
            lanes.sort_indices.setdefault((meta.pid, meta.tid), meta.args["sort_index"])
    lanes.settle(pid for pid, _ in plan.survey.threads)
    return lanes


def _on_common(plan: RankPlan) -> tuple[Any, Any, Any]:
    starts, ends, numbers = plan.steps
    return plan.clock.to_common(starts), plan.clock.to_common(ends), numbers


class _Renumber:
    """Gives the rows of each scan the numbers they have in the merged trace."""

    def __init__(self, plan: RankPlan, scanner: Scanner, lanes: Lanes, member: Member) -> None:
        self.plan, self._scanner, self._member = plan, scanner, member
        self._row = 0
        survey = plan.survey
        self._raw = survey.threads
        self._lanes = lanes
        self._threads: list[NumberedThread | None] = [None] * len(survey.threads)
        self._pids, self._tids = (np.zeros(len(survey.threads), np.int64) for _ in range(2))
        self._is_met = np.zeros(len(survey.threads), bool)
        self._none = np.full(scanner.max_rows, NONE)
        self._dropped_names = np.empty(0, np.int32)
        self._known_names = 0

    def described(self) -> list[tuple[str, str, str]]:
        """Process, thread and its name as the trace has them."""
        return [(pid, tid, self._lanes.thread_names.get((pid, tid), "")) for pid, tid in self._raw]

    def __call__(self, text: Text, events: EventTable | None) -> memoryview:
        """The text of the last scan's events in the merged trace."""
        scanner, member = self._scanner, self._member
        if len(scanner.threads) > len(self._raw):
            raise _OtherThreadsError
        phase = scanner.column("phase")
        raw_ts, raw_dur = scanner.column("ts_ns"), scanner.column("dur_ns")
        is_meta, is_slice = phase == META, phase == SLICE
        keep = self._kept(phase, is_meta, is_slice)
        start_ns, dur_ns = self._times(raw_ts, raw_dur, is_slice)
        stays = keep > 0
        ts_ns, seen_ns = self._seen(start_ns, dur_ns, stays & ~is_meta, is_slice)
        ts_ns[is_meta] = 0
        pid, tid = self._numbers(stays)
        self._move(tid)
        member.num_events += int(np.count_nonzero(stays))
        member.num_slices += int(np.count_nonzero(stays & (is_slice | (phase == BEGIN))))
        first_id = self.plan.rank * IDS_PER_RANK
        written = self._scanner.rewrite(
            text, keep=keep, pid=pid, tid=tid, ts_ns=ts_ns, first_id=first_id,
            dur_ns=self._nothing() if seen_ns is raw_dur else np.where(seen_ns != raw_dur, seen_ns, NONE),
            links=self._links(first_id))
        if events is not None:
            events.add(keep, start_ns, dur_ns)
        self._row += scanner.num_rows
        member.num_read = self._row
        return written

    def _kept(self, phase: Any, is_meta: Any, is_slice: Any) -> Any:
        """uint8 a row: 1 for what is written, 2 for slices that lose their arrow."""
        scanner, member, layout = self._scanner, self._member, self.plan.survey.layout
        lost = timeless(scanner)
        member.num_bad_times += int(np.count_nonzero(lost))
        if len(scanner.names) > self._known_names:
            texts = scanner.names.texts(self._known_names)
            new = [number for number, name in enumerate(texts, self._known_names) if name.decode("latin-1") in NAMES_OF]
            self._dropped_names = np.append(self._dropped_names, np.array(new, np.int32))
            self._known_names = len(scanner.names)
        keep = ~lost & (phase != 0)
        if is_meta.any():
            keep &= ~(is_meta & np.isin(scanner.column("name"), self._dropped_names))
        selection = self.plan.selection
        if not selection.is_all:
            keep &= is_meta | FLOWS[phase] | PAIRED[phase] | selection.kept(
                scanner.column("ts_ns") + self.plan.survey.base_ns, scanner.column("dur_ns"),
                scanner.column("category"), is_slice, selection.unwanted_categories(scanner.categories))
        keep[self._mine(layout.left_out_rows)] = False
        keep, hanging = keep.astype(np.uint8), self._mine(layout.hanging_rows)
        keep[hanging] = np.where(FLOWS[phase[hanging]], 0, 2)
        return keep

    def _times(self, raw_ts: Any, raw_dur: Any, is_slice: Any) -> tuple[Any, Any]:
        """Start on the common clock, and duration: the column itself where all of it stays."""
        clock, base_ns, layout = self.plan.clock, self.plan.survey.base_ns, self.plan.survey.layout
        own = np.where(raw_ts == NONE, 0, raw_ts)
        rows, moved = self._mine(layout.moved_rows, layout.moved_ns)
        own[rows] = moved
        own += base_ns
        start_ns = clock.to_common(own)
        dur_ns, bad = raw_dur, is_slice & (raw_dur < 0)  # where there is none too
        rows, cut = self._mine(layout.cut_rows, layout.cut_ns)
        if len(rows) or bad.any():
            self._member.num_without_duration += int(np.count_nonzero(bad & (raw_dur == NONE)))
            dur_ns = np.where(bad, 0, raw_dur)
            dur_ns[rows] = cut
        if clock.drift_ppm:
            dur_ns = np.where(dur_ns == NONE, NONE, clock.to_common(own + dur_ns) - start_ns)
        return start_ns, dur_ns

    def _seen(self, start_ns: Any, dur_ns: Any, counts: Any, is_slice: Any) -> tuple[Any, Any]:
        """Start behind the origin, and duration: what lies before it is moved onto it, and nests as it did."""
        ts_ns = start_ns - self.plan.origin_ns
        early = ts_ns < 0
        if not early.any():
            return ts_ns, dur_ns
        self._member.num_moved += int(np.count_nonzero(counts & early))
        return np.maximum(ts_ns, 0), np.where(early & is_slice, np.maximum(ts_ns + dur_ns, 0), dur_ns)

    def _links(self, first_id: int) -> Any:
        """New ids for arrows whose id an arrow before had."""
        rows, ids = self._mine(self.plan.survey.layout.reused_rows, self.plan.survey.layout.reused_ids)
        if not len(rows):
            return self._nothing()
        links = self._nothing().copy()
        links[rows] = first_id + ids
        return links

    def _nothing(self) -> Any:
        """`NONE` for each row."""
        return self._none[:self._scanner.num_rows]

    def _mine(self, rows: Any, values: Any = None) -> Any:
        """Those of the file's rows that are in this scan, as places in it; and the values beside them."""
        first, last = np.searchsorted(rows, (self._row, self._row + self._scanner.num_rows))
        places = rows[first:last] - self._row
        return places if values is None else (places, values[first:last])

    def _numbers(self, stays: Any) -> tuple[Any, Any]:
        threads = self._scanner.column("thread")
        if not self._is_met.take(threads).all():
            for number in np.flatnonzero(np.bincount(threads[stays]) > 0).tolist():
                if self._threads[number] is None:
                    thread = self._threads[number] = self._lanes.thread(*self._raw[number])
                    self._pids[number], self._tids[number], self._is_met[number] = thread.pid, thread.tid, True
        return self._pids.take(threads), self._tids.take(threads)

    def _move(self, tid: Any) -> None:
        """Puts overlapping slices, and the arrows that begin or end with them, into lanes of their own."""
        threads = self._scanner.column("thread")
        rows, lanes = self._mine(self.plan.survey.layout.side_rows, self.plan.survey.layout.side_lanes)
        for row, lane in zip(rows.tolist(), lanes.tolist(), strict=True):
            raw_pid, raw_tid = self._raw[threads[row]]
            tid[row] = self._lanes.side(raw_pid, raw_tid, lane).tid
