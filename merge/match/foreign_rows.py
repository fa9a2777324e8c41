"""Makes rows of collectives, like those that distprof records, from traces of other programs.

Kernels of NCCL describe their op if the profiler linked them to the call; otherwise the call is found through the
launch of the kernel. Slices of gloo have only the name of the op. What a trace does not contain is null.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import polars as pl

from distprof.contract.collective_ops import COLLECTIVE_OPS, POINT_TO_POINT, WITHOUT_DATA, gloo_names, text_of
from distprof.contract.problems import Inferred, MatchingInferred, TraceDamaged
from distprof.contract.tables import COLLECTIVES
from distprof.errors import DataError
from distprof.merge.match.backend_names import UNKNOWN, dtype_of, item_bytes, op_of, op_of_kernel
from distprof.merge.match.comm_events import STEP, CommEvent, CommEvents, EventKind, read_events
from distprof.merge.match.matching import ALONE
from distprof.merge.match.rank_rows import RankRows
from distprof.merge.run.group_ranks import coded
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.run.tables import TYPES
from distprof.merge.run.timelines import damages_of, for_each_rank
from distprof.merge.run.traces.trace_identity import Group

LANE = "lane"
"""Column besides those of the contract. Kernels of one communicator, if nothing names it, are on one stream."""
COALESCED = ("all_reduce", "all_gather")
"""Ops that may be issued with several inputs; slices of gloo have several only for these."""
SCHEMA = {column.name: TYPES[column.type] for column in COLLECTIVES.columns} | {
    "comms_id": pl.String(), LANE: pl.Int64()}


def foreign_rows(run: Run) -> RankRows:
    """Returns the rows of every rank whose trace can be read, and what is lost of the traces."""
    ranks = [rank for rank in run.ranks if rank.trace is not None]
    found = dict(zip((rank.number for rank in ranks), for_each_rank("match", _rows, ranks), strict=True))
    tags = {"mp_size": run.mp_size, "dp_size": run.dp_size}
    read = {rank: rows for rank, (rows, _) in found.items() if rows is not None}
    if len({len({row[LANE] for row in filter(_is_lane, rows)}) for rows in read.values()}) > 1:
        for row in (row for rows in read.values() for row in filter(_is_lane, rows)):
            row[LANE] = 0  # the streams of different ranks cannot be matched
    table = pl.DataFrame([{**row, **tags} for rows in read.values() for row in rows], schema=SCHEMA)
    return RankRows(rows=coded(table), problems=[one for _, problems in found.values() for one in problems])


def _rows(rank: Rank) -> tuple[list[dict[str, Any]] | None, list[TraceDamaged]]:
    assert rank.trace is not None
    try:
        found = read_events(rank.trace)
    except DataError as error:
        return None, [TraceDamaged(rank=rank.number, file=rank.trace.name, what="all", detail=str(error.args[0]))]
    rows_of = _RowsOf(found)
    rows = [*rows_of.kernels(), *rows_of.gloo()]
    rows.sort(key=lambda row: row["start_ns"])
    streams = sorted({row[LANE] for row in rows if _is_lane(row)})
    numbered = [{**row, "rank": rank.number, LANE: streams.index(row[LANE]) if _is_lane(row) else row[LANE]}
                for row in rows]
    return numbered, [*damages_of(rank.number, rank.trace, found.damage, found.losses, found.num_events,
                                   found.num_overlong, found.num_untimed)]


def _is_lane(row: Mapping[str, Any]) -> bool:
    return row[LANE] is not None and row[LANE] != ALONE


@dataclass(frozen=True, slots=True)
class _Enclosing:
    """Events of a kind by thread, to find the one that contains a time."""

    events: Mapping[int, tuple[list[int], list[CommEvent], list[int]]]
    """For each thread the starts, the events, and for each event the index of the last one before it that was open
    when it began; -1 if none was."""

    @classmethod
    def of(cls, events: Sequence[CommEvent]) -> _Enclosing:
        """Takes events in order of time."""
        by_thread = defaultdict[int, list[CommEvent]](list)
        for event in events:
            by_thread[event.thread].append(event)
        return cls({thread: ([event.start_ns for event in some], some, _outer(some))
                    for thread, some in by_thread.items()})

    def at(self, thread: int, at_ns: int) -> CommEvent | None:
        """Returns the event that began last on the thread of those that are open then."""
        starts, events, outer = self.events.get(thread, ([], [], []))
        place = bisect_right(starts, at_ns) - 1
        while place >= 0 and at_ns > events[place].end_ns:
            place = outer[place]
        return events[place] if place >= 0 else None


def _outer(events: Sequence[CommEvent]) -> list[int]:
    """Returns for each event the index of the last one before it that had not ended when it began; -1 for none."""
    found, still_open = list[int](), list[int]()
    for index, event in enumerate(events):
        while still_open and events[still_open[-1]].end_ns < event.start_ns:
            still_open.pop()
        found.append(still_open[-1] if still_open else -1)
        still_open.append(index)
    return found


class _RowsOf:
    """Makes rows from the events of one rank."""

    def __init__(self, found: CommEvents) -> None:
        self._found = found
        self._groups = {group.name: group for group in found.identity.groups}
        self._steps = [(event.start_ns, event.end_ns, int(match[1])) for event in found.events[EventKind.STEP]
                       if (match := STEP.match(event.name))]
        self._step_starts = [start for start, _, _ in self._steps]

    def kernels(self) -> Iterator[dict[str, Any]]:
        """Yields a row per communication kernel."""
        calls, parameters, notes = (
            _Enclosing.of([event for event in self._found.events[kind] if op_of_event(event) or kind is EventKind.NOTE])
            for kind in (EventKind.CALL, EventKind.PARAMETERS, EventKind.NOTE))
        for kernel in self._found.events[EventKind.KERNEL]:
            at_ns, thread = self._found.launches.get(kernel.integers.get("correlation", -1), (None, 0))
            call, details, note = (None, None, None) if at_ns is None else (
                side.at(thread, at_ns) for side in (calls, parameters, notes))
            issued = call or details or note
            yield self._row(kernel, kernel if "Collective name" in kernel.texts else details or kernel, note, call,
                            issued_ns=issued.start_ns if issued else None, at_ns=at_ns, lane=kernel.thread)

    def gloo(self) -> Iterator[dict[str, Any]]:
        """Yields a row per slice of gloo's threads, joined with its call if the calls match unambiguously."""
        slices = self._found.events[EventKind.GLOO]
        calls = _calls_of(slices, self._found.events[EventKind.CALL]) if len(self._groups) <= 1 else {}
        for place, one in enumerate(slices):
            call = calls.get(place)
            # neither the process group of a slice is known, nor which threads belong to one group
            yield self._row(one, one, one, call, issued_ns=call.start_ns if call else None, at_ns=None, lane=0)

    def _row(self, timed: CommEvent, details: CommEvent, note: CommEvent | None, call: CommEvent | None, *,
             issued_ns: int | None, at_ns: int | None, lane: int) -> dict[str, Any]:
        op = _op(timed, details, note, call)
        # c10d's calls may begin with the output, those of symmetric memory begin with the input
        shaped = call if note is None and call is not None and call.name.startswith("symm_mem::") else note
        elements, dtype = _elements(op, details, shaped)
        group = self._group(details)
        in_group = group.ranks if group else _ranks_listed(details)
        sizes = item_bytes(dtype)
        num_bytes = 0 if op in WITHOUT_DATA else None if elements is None or sizes is None else elements * sizes
        name = details.texts.get("Process Group Name") or (group.name if group else "") or None
        return {
            "step": self._step(next(time for time in (issued_ns, at_ns, timed.start_ns) if time is not None)),
            "op": op, "group": name,
            "group_description": details.texts.get("Process Group Description") or (group.description if group else "")
            or None,
            "group_ranks": text_of(in_group) if in_group else None, "group_size": len(in_group) if in_group else None,
            "group_sequence": details.integers.get("Seq"),
            "num_elements": 0 if op in WITHOUT_DATA else elements, "size_bytes": num_bytes,
            "dtype": None if op in WITHOUT_DATA else dtype, "peer": _peer(op, details),
            "split_bytes": _splits(details, num_bytes, len(in_group or ())) if op == "all_to_all" else None,
            "enqueue_ns": issued_ns, "start_ns": timed.start_ns, "end_ns": timed.end_ns, "timed_by": "timeline",
            "comms_id": details.texts.get("Comms Id"),
            LANE: None if in_group or name is not None else ALONE if self._groups else lane,
        }

    def _group(self, details: CommEvent) -> Group | None:
        name = details.texts.get("Process Group Name")
        if name is not None:
            return self._groups.get(name)
        size = details.integers.get("Group size")
        known = [group for group in self._groups.values() if size in (None, len(group.ranks))]
        if len(known) == 1:
            return known[0]
        members = {group.ranks for group in known}
        return Group(description="", ranks=members.pop()) if len(members) == 1 else None

    def _step(self, at_ns: int) -> int | None:
        place = bisect_right(self._step_starts, at_ns) - 1
        return self._steps[place][2] if place >= 0 and at_ns < self._steps[place][1] else None


def op_of_event(event: CommEvent) -> str | None:
    """Returns the op that the event states, else the one in its name."""
    if event.name == "record_param_comms":
        return op_of(event.texts.get("Collective name", ""))
    return op_of_kernel(event.name)


def _op(timed: CommEvent, details: CommEvent, note: CommEvent | None, call: CommEvent | None) -> str:
    """Returns the op. torch's notes come first: gloo calls a reduce_scatter all_reduce, NCCL has kernels of sends."""
    named = details.texts.get("Collective name")
    found = (op_of(named) or named) if named else None
    for event in (call, note if note is not timed else None, timed):
        found = found or (op_of_event(event) if event is not None else None)
    return found or UNKNOWN


def _elements(op: str, details: CommEvent, note: CommEvent | None) -> tuple[int | None, str | None]:
    """Returns the number of elements of the input (of the output for a receive) and their type."""
    dtype = dtype_of(details.texts.get("dtype"))
    elements = details.integers.get("Out msg nelems" if op == "recv" else "In msg nelems")
    if elements is None and note is not None:
        shapes, types = (_listed(note.texts.get(key)) for key in ("Input Dims", "Input type"))
        is_coalesced = note.name.startswith("gloo:") and op in COALESCED
        shapes, types = (shapes, types) if is_coalesced else ((shapes or [])[:1], (types or [])[:1])
        if shapes and types and all(map(_is_shape, shapes)) and len(set(map(str, types))) == 1:
            dtype = dtype or dtype_of(str(types[0]))
            elements = sum(map(prod, shapes)) if dtype is not None else None
    return elements, dtype


def _is_shape(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(size, int) for size in value)


def _listed(text: str | None) -> list[Any] | None:
    """Parses a list; None for a shortened one: the profiler writes "..." into long lists."""
    try:
        found = json.loads(text or "")
    except ValueError:
        return None
    return found if isinstance(found, list) and "..." not in found else None


def _ranks_listed(details: CommEvent) -> list[int] | None:
    ranks = _listed(details.texts.get("Process Group Ranks"))
    if ranks and all(isinstance(rank, int) for rank in ranks):
        return ranks
    start, stride, size = (
        details.integers.get(key) for key in ("Global rank start", "Global rank stride", "Group size"))
    if start is None or stride is None or size is None or stride < 1 or not 0 < size <= 1 << 20:
        return None
    return [start + stride * index for index in range(size)]


def _peer(op: str, details: CommEvent) -> int | None:
    """Returns the peer's rank: the profiler writes global ranks."""
    if op not in POINT_TO_POINT:
        return None
    return details.integers.get("Dst Rank" if op == "send" else "Src Rank")


def _splits(details: CommEvent, num_bytes: int | None, num_ranks: int) -> list[int] | None:
    """Returns the bytes to each rank from the rows of the first dimension that go there; None for an even split."""
    parts = _listed(details.texts.get("In split size"))
    if not parts or num_bytes is None or len(parts) != num_ranks or not all(isinstance(one, int) for one in parts):
        return None
    rows = sum(parts)
    return [num_bytes * part // rows for part in parts] if rows else [0] * len(parts)


def _worked_as(op: str | None) -> str | None:
    """Returns the op that gloo names in its slices of this op: all_reduce for reduce_scatter."""
    return next((name for name in gloo_names(op or "") if name in COLLECTIVE_OPS and name != op), op)


def _calls_of(slices: Sequence[CommEvent], calls: Sequence[CommEvent]) -> dict[int, CommEvent]:
    """Returns slice -> its call: the k-th of a kind, if there are equally many and no slice began before its call."""
    by_kind: dict[str | None, list[int]] = defaultdict(list)
    for place, one in enumerate(slices):
        by_kind[op_of_event(one)].append(place)
    issued: dict[str | None, list[CommEvent]] = defaultdict(list)
    for call in calls:
        op = op_of_event(call)
        issued[_worked_as(op)].append(call)
    return {place: call for kind, places in by_kind.items() if kind is not None
            and len(places) == len(issued[kind])
            and all(slices[place].start_ns >= call.start_ns for place, call in zip(places, issued[kind], strict=True))
            for place, call in zip(places, issued[kind], strict=True)}


def remarks_of(rows: pl.DataFrame) -> list[MatchingInferred]:
    """Returns what was inferred for matched rows."""
    if rows.is_empty():
        return []
    count = Counter(rows["matched_by"].to_list())
    no_group = rows.filter(pl.col("group_ranks").is_null(), pl.col("matched_by") != "peer").height
    found: dict[Inferred, int] = {
        "label": count["label"], "order": count["order"], "group": no_group, "none": count[None]}
    return [MatchingInferred(what=what, num_rows=number, total=len(rows)) for what, number in found.items() if number]
