"""trace.json.gz: one Chrome trace of all ranks.

Each rank is a gzip member, compressed where the rank was read; the file is their concatenation.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from distprof.contract.paths import FORMAT, TRACE_JSON
from distprof.merge.chrome.drawing.drawn import DRAWN, PROCESS, CounterValue, DrawnCollective, DrawnSlice, DrawnTensor
from distprof.merge.chrome.gzip_member import GzipMember, packed
from distprof.merge.chrome.numbering import Lanes
from distprof.merge.chrome.one_file import OneFile
from distprof.merge.chrome.rank_events import DecidedEvents, RankCounts, RankEvents
from distprof.merge.chrome.rank_plan import Plans, RankPlan
from distprof.merge.chrome.stack_frames import KEY, frames_of, with_frames_of
from distprof.merge.chrome.work_folder import Attempt, make_work_folder
from distprof.merge.clock.model import Clock
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.scan.made_events import microseconds
from distprof.merge.scan.repair import BACKSLASH_LAST, repaired

if TYPE_CHECKING:
    from distprof.merge.chrome.drawing.collectives import Drawing
    from distprof.merge.chrome.drawing.memory import MemoryCounters
    from distprof.storage.writing.joined import Joined, Share

HEAD = b'{"displayTimeUnit":"ms","traceEvents":[\n'
BETWEEN = b",\n"
AT_ONCE = 1 << 14
"""Events that are put into text together."""
NO_RANKS = b'"ranks":{}}}'
"""End of the metadata, before that of ranks is put in."""
PIECE_BYTES = 16 << 20
"""Metadata that is compressed together."""
FIRST_ARROW = 1 << 52
"""Ids of arrows between ranks start here; those within ranks are below, and a double holds twice as many exactly."""


class ChromeJson:
    """Writes the trace."""

    def __init__(self, folder: Path, run: Run, clock: Clock, plans: Plans, joined: Joined | None = None) -> None:
        self._folder, self._run, self._clock, self._plans = folder, run, clock, plans
        self._out = OneFile(folder / TRACE_JSON) if joined is None else joined
        self._ranks = {rank.number: rank for rank in run.ranks}
        self._indices = {plan.rank: index for index, plan in enumerate(plans.ranks)}
        self._is_empty = True

    def begin(self) -> None:
        self._work = make_work_folder(self._folder)
        self._out.begin(len(self._plans.ranks), packed(BETWEEN))
        self._out.write(packed(HEAD))
        # metadata of many ranks is long: the file of each lists all ranks of its groups
        self._about: IO[bytes] = tempfile.TemporaryFile(dir=self._work)  # noqa: SIM115 (closed by end)
        self._frames: IO[bytes] = tempfile.TemporaryFile(dir=self._work)  # noqa: SIM115 (likewise)

    def rank_writer(self, plan: RankPlan) -> ChromeRank:
        return ChromeRank(self._part(plan), draws_memory=plan.draws_memory, has_frames=KEY in plan.survey.metadata,
                          share=self._out.share(self._indices[plan.rank]))

    def _part(self, plan: RankPlan) -> Path:
        return self._work / f"rank{plan.rank}.part"

    def add(self, plan: RankPlan, counts: RankCounts) -> None:
        part = self._part(plan)
        if counts.num_events:
            self._out.write(self._separator())
            self._out.append(self._indices[plan.rank], part, counts.parts)
        part.unlink(missing_ok=True)  # there is none of a rank that could not be read again
        _append(self._frames, frames_of(counts.metadata, plan.rank))
        known = _of_rank(self._run, self._ranks[plan.rank], self._clock, plan, counts)
        _append(self._about, {str(plan.rank): known})

    def _separator(self) -> bytes:
        """What stands before the next events."""
        is_first, self._is_empty = self._is_empty, False
        return b"" if is_first else packed(BETWEEN)

    def end(self, counts: Sequence[RankCounts]) -> None:
        self._out.finish(self._tail())
        self._about.close()
        self._frames.close()

    def _tail(self) -> Iterator[bytes]:
        """The counters of the job, and what the viewer shows as trace info."""
        plans = self._plans
        counters = counter_events(plans.drawing, plans.counters_pid, plans.origin_ns)
        while some := list(islice(counters, AT_ONCE)):
            yield self._separator()
            yield packed(BETWEEN.join(map(encoded, some)))
        yield from map(packed, self._metadata())

    def _metadata(self) -> Iterator[bytes]:
        """What comes behind the events, in one piece where it is not long."""
        whole = encoded({"distprof": _metadata(self._run, self._clock, self._plans)})
        head, tail = whole[:-len(NO_RANKS)] + NO_RANKS[:-3], NO_RANKS[-3:]
        held = b"\n],"
        lists = [(b'"stackFrames":{', self._frames, b"},")] if self._frames.tell() else []
        for before, file, after in (*lists, (b'"metadata":' + head, self._about, tail)):
            file.seek(0)
            held += before
            while text := file.read(PIECE_BYTES):
                if len(held) + len(text) > PIECE_BYTES:
                    yield held
                    held = b""
                held += text
            held += after
        yield held + b"}\n"


class ChromeRank:
    """Writes the events of a rank as a gzip member, without brackets around them."""

    texts = ()

    def __init__(self, path: Path, *, draws_memory: bool = False, has_frames: bool = False,
                 share: Share | None = None) -> None:
        """Writes to a file of the work folder; from there to an object, where it has a share in one."""
        self._path, self._draws_memory, self._has_frames, self._share = path, draws_memory, has_frames, share
        self._memory: MemoryCounters | None = None

    @property
    def integers(self) -> Sequence[str]:
        """Of the allocators, where they are in the trace."""
        return self._counters().keys if self._draws_memory else ()

    @staticmethod
    def _counters() -> MemoryCounters:
        from distprof.merge.chrome.drawing.memory import MemoryCounters  # polars takes a while to import

        return MemoryCounters()

    def begin(self, events: RankEvents) -> None:
        self._events, self._attempt = events, Attempt(self._path, self._path.parent)
        self._file = self._attempt.file
        self._memory = self._counters() if self._draws_memory else None
        self._member = GzipMember()
        self._is_empty = True

    def add(self, events: DecidedEvents) -> None:
        text = events.json()
        self._write(with_frames_of(text, self._events.plan.rank) if self._has_frames and text else text)
        if self._memory is not None:
            self._memory.take(events.scanner)

    def _write(self, text: bytes | memoryview) -> None:
        if text:
            if not self._is_empty:
                self._file.write(self._member.add(BETWEEN))
            self._is_empty = False
            self._file.write(self._member.add(text))

    def end(self) -> None:
        """Writes what is drawn, and the names of processes and threads."""
        if not self._is_empty:
            texts = map(encoded, self._drawn())
            while some := list(islice(texts, AT_ONCE)):
                self._write(BETWEEN.join(some))
        self._file.write(self._member.end())
        parts = None if self._share is None else self._share.put(self._file)
        self._events.counts.parts = parts
        self._attempt.keep(spare=parts is not None)

    def _drawn(self) -> Iterator[dict[str, object]]:
        lanes, plan = self._events.lanes, self._events.plan
        for step in self._events.step_slices():
            thread = lanes.extra("steps")
            yield slice_event(step, thread.pid, thread.tid, plan.origin_ns)
        yield from collective_events(plan.collectives, lanes, plan.origin_ns)
        if self._memory is not None:
            yield from counters_of(self._memory.values(plan), lanes.first_pid, plan.origin_ns)
        yield from tensor_events(plan.tensors, lanes.first_pid, plan.origin_ns)
        yield from lanes.describe()

    def close(self) -> None:
        self._attempt.close()


def _append(file: IO[bytes], members: dict[str, Any]) -> None:
    """Members of an object, without the brackets around it."""
    if members:
        file.write((b"," if file.tell() else b"") + encoded(members)[1:-1])


def encoded(value: dict[str, Any]) -> bytes:
    """JSON that every viewer reads."""
    text = msgspec.json.encode(value)
    return repaired(text) if BACKSLASH_LAST in text else text


def slice_event(what: DrawnSlice, pid: int, tid: int, origin_ns: int,
                args: dict[str, Any] | None = None) -> dict[str, object]:
    """A slice; what lies before the origin is cut."""
    start_ns = max(what.start_ns - origin_ns, 0)
    return {"ph": "X", "cat": DRAWN, "name": what.name, "pid": pid, "tid": tid, "ts": microseconds(start_ns),
            "dur": microseconds(max(what.end_ns - origin_ns - start_ns, 0)), **({} if args is None else {"args": args})}


def collective_events(drawn: Iterable[DrawnCollective], lanes: Lanes, origin_ns: int) -> Iterator[dict[str, object]]:
    """Slices on threads of the rank's first process, with the ends of arrows behind the slices they belong to."""
    for one in drawn:
        thread = lanes.extra(one.thread)
        yield slice_event(one.slice, thread.pid, thread.tid, origin_ns, one.args)
        for part in one.parts:
            yield slice_event(part, thread.pid, thread.tid, origin_ns)
        for arrow in one.arrows:
            yield {"ph": arrow.phase, "cat": DRAWN, "name": arrow.name, "id": FIRST_ARROW + arrow.number,
                   "pid": thread.pid, "tid": thread.tid, "ts": microseconds(arrow.at_ns - origin_ns),
                   **({"bp": "e"} if arrow.phase == "f" else {})}


def tensor_events(drawn: Iterable[DrawnTensor], pid: int, origin_ns: int) -> Iterator[dict[str, object]]:
    """Asynchronous slices. A viewer has a track for each id, and calls it by the first event on it."""
    named = set[str]()
    for one in drawn:
        start_ns = max(one.slice.start_ns - origin_ns, 0)
        lane = f"{one.device} {one.lane}"
        place = {"cat": DRAWN, "pid": pid, "id2": {"local": lane}}
        if lane not in named:
            named.add(lane)
            yield {"ph": "n", "name": f"tensors {one.device}", "ts": microseconds(start_ns), **place}
        for phase, at_ns, args in (("b", start_ns, one.args), ("e", max(one.slice.end_ns - origin_ns, start_ns), {})):
            yield {"ph": phase, "name": one.slice.name, "ts": microseconds(at_ns), "args": args, **place}


def counter_events(drawing: Drawing | None, pid: int, origin_ns: int) -> Iterator[dict[str, object]]:
    """A process of its own, above those of the ranks, with the counters of the job."""
    values = chain.from_iterable(drawing.counters if drawing is not None else ())
    first = next(values, None)
    if first is None:
        return
    for name, args in (("process_name", {"name": PROCESS}), ("process_sort_index", {"sort_index": -1})):
        yield {"ph": "M", "name": name, "pid": pid, "args": args}
    yield from counters_of(chain((first,), values), pid, origin_ns)


def counters_of(samples: Iterable[CounterValue], pid: int, origin_ns: int) -> Iterator[dict[str, object]]:
    """Counters of a process."""
    for sample in samples:
        yield {"ph": "C", "cat": DRAWN, "name": sample.what, "pid": pid,
               "ts": microseconds(max(sample.at_ns - origin_ns, 0)), "args": {sample.state: sample.value}}


def _metadata(run: Run, clock: Clock, plans: Plans) -> dict[str, Any]:
    """What the viewer shows as trace info, still without what there is of each rank."""
    return {"format": FORMAT, "run_id": run.run_id, "world_size": run.world_size,
            "topology": run.topology if run.topology_known else None,
            "origin_ns": plans.origin_ns, "clock": clock.to_json(), "missing_ranks": run.missing,
            "left_out": plans.remarks, "ranks": {}}


def _of_rank(run: Run, rank: Rank, clock: Clock, plan: RankPlan, counts: RankCounts) -> dict[str, Any]:
    """Its mp, dp, host, offset and counts."""
    return {
        "mp_size": run.mp_size if run.topology_known else None,
        "dp_size": run.dp_size if run.topology_known else None, "coordinates": rank.coordinates,
        "host": rank.host, "offset_ns": plan.clock.offset_ns, "drift_ppm": plan.clock.drift_ppm,
        "uncertainty_ns": clock.ranks[plan.rank].uncertainty_ns,
        "num_slices": counts.num_slices, "num_events": counts.num_events,
        "num_overlapping_slices": counts.num_side, "num_cut_slices": counts.num_cut,
        "num_hanging_arrow_ends": counts.num_hanging, "num_left_out": counts.num_left_out,
        "not_recorded": _not_recorded(rank),
        "num_slices_without_duration": counts.num_without_duration,
        "num_slices_of_negative_duration": counts.num_negative, "num_moved_events": counts.num_moved,
        "num_repaired_events": counts.num_repaired, "num_events_without_time": counts.num_bad_times,
        "kineto": counts.metadata,
    }


def _not_recorded(rank: Rank) -> dict[str, int] | None:
    """Events that the recorder left out of the timeline, the shortest; None where it has all."""
    left_out = rank.recorded.left_out if rank.recorded is not None else None
    return None if left_out is None else msgspec.structs.asdict(left_out)
