"""Decides what happens to each event of a rank: whether it is kept, its thread, its times, its arrow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from distprof.arrays import Array, Flags, Integers
from distprof.merge.chrome.drawing.drawn import DrawnSlice
from distprof.merge.chrome.numbering import Lanes
from distprof.merge.chrome.rank_plan import RankPlan
from distprof.merge.chrome.step_selection import Steps
from distprof.merge.chrome.survey import NAMES_OF, timeless
from distprof.merge.scan.chrome_file import Losses
from distprof.merge.scan.engine import Scanner
from distprof.merge.scan.scanned_columns import BEGIN, FLOWS, META, NONE, PAIRED, SLICE, Text

if TYPE_CHECKING:
    from distprof.storage.writing.joined import Parts

SENTENCES = {
    "num_left_out": ("event", "dropped, as requested by the options"),
    "num_side": ("slice", "moved to an extra lane because they partly overlap another slice"),
    "num_cut": ("slice", "shortened where they extend past the slice around them, by at most 1 us if an extra lane is "
                         "free"),
    "num_hanging": ("end of an arrow", "dropped: not inside a slice, or the other end is missing, as for many GPU "
                                       "commands in torch.profiler's traces"),
    "num_without_duration": ("slice", "without a duration, assumed to be 0"),
    "num_negative": ("slice", "with a negative duration, set to 0"),
    "num_moved": ("event", "moved to the beginning: at least a day before all others"),
    "num_repaired": ("event", "repaired: not JSON that every viewer can read"),
}
"""Count -> what `distprof merge` prints if it is not 0: what was counted, and what happened to it."""
IDS_PER_RANK = 1 << 32
"""Number of flow and async ids per rank: with fewer than 2^20 ranks, all are below those of arrows between ranks."""


@dataclass(slots=True, kw_only=True)
class RankCounts:
    """How many events of a rank were read, written, changed and left out; `SENTENCES` explains some of the counts."""

    rank: int
    num_slices: int = 0
    num_events: int = 0
    num_read: int = 0
    """Events of the rank's own trace, metadata included."""
    num_bytes: int = 0
    """Bytes of its decompressed text."""
    num_moved: int = 0
    num_side: int = 0
    num_cut: int = 0
    num_left_out: int = 0
    num_hanging: int = 0
    num_bad_times: int = 0
    """Events without a time or a phase, left out."""
    num_without_duration: int = 0
    num_negative: int = 0
    lost: str = ""
    """Why nothing was written, if the file could not be read again."""
    losses: Losses = field(default_factory=Losses)
    metadata: dict[str, Any] = field(default_factory=dict)
    """Top-level keys of the rank's file except the events."""
    parts: Parts | None = None
    """What the worker uploaded of the rank's trace, if it does so itself."""
    objects: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    """Files of the rank that the worker uploaded: name -> their parts."""

    @property
    def num_repaired(self) -> int:
        """Number of events that were not strict JSON."""
        return self.losses.repaired_events


class OtherThreadsError(Exception):
    """The second pass found a thread that the survey had not found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedEvents:
    """Events of a rank in the order of its trace, with decisions; arrays have a value per event.

    Valid until the next ones come.
    """

    text: Text
    scanner: Scanner
    """The scanner, whose columns are the events as the trace has them."""
    keep: Array
    """uint8: 0 for events that are left out, 2 for slices that lose their arrow."""
    pid: Integers
    """int64, unique in the merged trace; likewise `tid`."""
    tid: Integers
    start_ns: Integers
    """int64, on the common clock."""
    duration_ns: Integers
    """int64, `NONE` if there is none."""
    shown_start_ns: Integers
    """int64, relative to the origin; what begins earlier begins at 0."""
    shown_duration_ns: Integers
    """int64, `NONE` if it is as in the trace."""
    links: Integers
    """int64: new ids for arrows whose id an earlier arrow had, else `NONE`."""
    first_id: int
    """Added to the ids of the rank."""

    def json(self) -> memoryview:
        """Returns the kept events as JSON, joined by a comma and a newline; unchanged bytes are copied."""
        return self.scanner.rewrite(
            self.text, keep=self.keep, pid=self.pid, tid=self.tid, ts_ns=self.shown_start_ns, first_id=self.first_id,
            dur_ns=self.shown_duration_ns, links=self.links)


class RankEvents:
    """Decides on events scan by scan, during one pass over a rank's trace."""

    def __init__(self, plan: RankPlan, scanner: Scanner, counts: RankCounts) -> None:
        self.plan, self.scanner, self.counts = plan, scanner, counts
        self.lanes = lanes_of(plan)
        self._row = 0
        survey = plan.survey
        self._raw = survey.threads
        self._pids, self._tids = (np.zeros(len(survey.threads), np.int64) for _ in range(2))
        self._is_met = np.zeros(len(survey.threads), bool)
        self._none = np.full(scanner.max_rows, NONE)
        self._dropped_names = np.empty(0, np.int32)
        self._known_names = 0

    @property
    def threads(self) -> list[tuple[str, str, str]]:
        """Process, thread and its name as in the trace, by thread number of the scanner."""
        return [(pid, tid, self.lanes.thread_names.get((pid, tid), "")) for pid, tid in self._raw]

    @property
    def steps(self) -> Steps:
        """Start, end and number of the rank's steps, on the common clock."""
        starts, ends, numbers = self.plan.steps
        return self.plan.clock.to_common(starts), self.plan.clock.to_common(ends), numbers

    def step_slices(self) -> Iterator[DrawnSlice]:
        """Yields slices to draw for steps that distprof recorded; those of torch.profiler are already in its trace."""
        plan, survey = self.plan, self.plan.survey
        if survey.steps or survey.first_ns is None or survey.last_ns is None:
            return
        starts, ends, _ = plan.steps
        windows = plan.selection.windows_ns
        inside = np.ones(len(starts), bool) if windows is None else windows.meets(starts, ends - 1)
        for start, end, number in zip(*(column[inside].tolist() for column in plan.steps), strict=True):
            if end > survey.first_ns and start < survey.last_ns:
                yield DrawnSlice(f"step {number}", int(plan.clock.to_common(start)), int(plan.clock.to_common(end)))

    def decide(self, text: Text) -> DecidedEvents:
        """Decides on the events of the last scan of `text`.

        Raises:
            OtherThreadsError: One is on a thread that the survey had not found.
        """
        scanner, counts = self.scanner, self.counts
        if len(scanner.threads) > len(self._raw):
            raise OtherThreadsError
        phase, raw_dur = scanner.column("phase"), scanner.column("dur_ns")
        is_meta, is_slice = phase == META, phase == SLICE
        keep = self._kept(phase, is_meta, is_slice)
        start_ns, dur_ns = self._times(scanner.column("ts_ns"), raw_dur, is_slice)
        stays = keep > 0
        ts_ns, seen_ns = self._seen(start_ns, dur_ns, stays & ~is_meta, is_slice)
        ts_ns[is_meta] = 0
        pid, tid = self._numbers(stays)
        self._move(tid)
        counts.num_events += int(np.count_nonzero(stays))
        counts.num_slices += int(np.count_nonzero(stays & (is_slice | (phase == BEGIN))))
        first_id = self.plan.rank * IDS_PER_RANK
        decided = DecidedEvents(
            text=text, scanner=scanner, keep=keep, pid=pid, tid=tid, start_ns=start_ns, duration_ns=dur_ns,
            shown_start_ns=ts_ns, links=self._links(first_id), first_id=first_id,
            shown_duration_ns=self._nothing() if seen_ns is raw_dur else np.where(seen_ns != raw_dur, seen_ns, NONE))
        self._row += scanner.num_rows
        counts.num_read = self._row
        return decided

    def _kept(self, phase: Array, is_meta: Flags, is_slice: Flags) -> Any:
        """Returns per row (uint8) 1 for what is written, 2 for slices that lose their arrow, 0 for the others."""
        scanner, counts, layout = self.scanner, self.counts, self.plan.survey.layout
        lost = timeless(scanner)
        counts.num_bad_times += int(np.count_nonzero(lost))
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
                scanner.column("category"), scanner.column("name"), is_slice, scanner)
        keep[self._mine(layout.left_out_rows)] = False
        keep, hanging = keep.astype(np.uint8), self._mine(layout.hanging_rows)
        keep[hanging] = np.where(FLOWS[phase[hanging]], 0, 2)
        return keep

    def _times(self, raw_ts: Integers, raw_dur: Integers, is_slice: Flags) -> tuple[Integers, Integers]:
        """Returns starts on the common clock, and durations: the original column if none changes."""
        clock, base_ns, layout = self.plan.clock, self.plan.survey.base_ns, self.plan.survey.layout
        own = np.where(raw_ts == NONE, 0, raw_ts)
        rows, moved = self._mine(layout.moved_rows, layout.moved_ns)
        own[rows] = moved
        own += base_ns
        start_ns = clock.to_common(own)
        dur_ns, bad = raw_dur, is_slice & (raw_dur < 0)  # includes missing durations
        rows, cut = self._mine(layout.cut_rows, layout.cut_ns)
        if len(rows) or bad.any():
            self.counts.num_without_duration += int(np.count_nonzero(bad & (raw_dur == NONE)))
            self.counts.num_negative += int(np.count_nonzero(bad & (raw_dur != NONE)))
            dur_ns = np.where(bad, 0, raw_dur)
            dur_ns[rows] = cut
        if clock.drift_ppm:
            dur_ns = np.where(dur_ns == NONE, NONE, clock.to_common(own + dur_ns) - start_ns)
        return start_ns, dur_ns

    def _seen(self, start_ns: Integers, dur_ns: Integers, counts: Flags, is_slice: Flags) -> tuple[Integers, Integers]:
        """Returns starts relative to the origin, and durations; earlier events are moved onto it, and nest as before.
        """
        ts_ns = start_ns - self.plan.origin_ns
        early = ts_ns < 0
        if not early.any():
            return ts_ns, dur_ns
        self.counts.num_moved += int(np.count_nonzero(counts & early))
        return np.maximum(ts_ns, 0), np.where(early & is_slice, np.maximum(ts_ns + dur_ns, 0), dur_ns)

    def _links(self, first_id: int) -> Integers:
        """Returns new ids for arrows whose id an earlier arrow had."""
        rows, ids = self._mine(self.plan.survey.layout.reused_rows, self.plan.survey.layout.reused_ids)
        if not len(rows):
            return self._nothing()
        links = self._nothing().copy()
        links[rows] = first_id + ids
        return links

    def _nothing(self) -> Integers:
        """Returns `NONE` for each row."""
        return self._none[:self.scanner.num_rows]

    def _mine(self, rows: Integers, values: Integers | None = None) -> Any:
        """Returns those of the file's rows that are in this scan, as indices in it; and the values beside them."""
        first, last = np.searchsorted(rows, (self._row, self._row + self.scanner.num_rows))
        places = rows[first:last] - self._row
        return places if values is None else (places, values[first:last])

    def _numbers(self, stays: Flags) -> tuple[Integers, Integers]:
        threads = self.scanner.column("thread")
        if not self._is_met.take(threads).all():
            for number in np.unique(threads[stays & ~self._is_met.take(threads)]).tolist():
                thread = self.lanes.thread(*self._raw[number])
                self._pids[number], self._tids[number], self._is_met[number] = thread.pid, thread.tid, True
        return self._pids.take(threads), self._tids.take(threads)

    def _move(self, tid: Integers) -> None:
        """Moves overlapping slices, and the arrows that begin or end with them, to extra lanes."""
        threads = self.scanner.column("thread")
        rows, lanes = self._mine(self.plan.survey.layout.side_rows, self.plan.survey.layout.side_lanes)
        for row, lane in zip(rows.tolist(), lanes.tolist(), strict=True):
            raw_pid, raw_tid = self._raw[threads[row]]
            tid[row] = self.lanes.side(raw_pid, raw_tid, lane).tid


def lanes_of(plan: RankPlan) -> Lanes:
    """Makes the lanes of a rank, with the names that the trace gives to its processes and threads."""
    lanes = Lanes(rank=plan.rank, title=plan.title, numbers=plan.numbers)
    for meta in plan.survey.meta:
        if meta.kind == "process_labels":
            lanes.labels.setdefault(meta.pid, str(meta.value))
        elif meta.kind == "process_name":
            lanes.programs.setdefault(meta.pid, str(meta.value))
        elif meta.kind == "thread_name":
            lanes.name_thread(meta.pid, meta.tid, str(meta.value))
        elif meta.kind == "thread_sort_index" and isinstance(meta.value, int):
            lanes.sort_indices.setdefault((meta.pid, meta.tid), meta.value)
    lanes.settle(pid for pid, _ in plan.survey.threads)
    return lanes
