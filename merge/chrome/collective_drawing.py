"""Draws collectives: slices in threads of their own, arrows from the late rank to those that waited, counters."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import polars as pl

from distprof.merge.activity.intervals import Intervals
from distprof.merge.chrome.drawing import PROCESS, ArrowEnd, CounterValue, DrawnCollective, DrawnSlice
from distprof.merge.clock.model import Clock
from distprof.merge.layout.windows import Windows
from distprof.merge.run.group_ranks import with_lists
from distprof.units import spans

SHORTEST_NS, LONG_NS, SHARE = 10_000, 100_000, 0.01
"""Waits that get an arrow: longer than the first, and as long as the second or as this share of their step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """What is drawn."""

    ranks: Mapping[int, list[DrawnCollective]]
    counters: list[CounterValue]

    @property
    def most_threads(self) -> int:
        """Threads that this takes on the rank where it takes most."""
        return max((len({one.thread for one in drawn}) for drawn in self.ranks.values()), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawOptions:
    """What of a rank is drawn."""

    windows_ns: Windows | None = None
    """On the common clock; None: all."""
    min_duration_ns: int = 0
    step_ns: Mapping[int, int] = field(default_factory=dict)
    """How long each step took."""


class _Row(NamedTuple):
    """The columns of `MERGED_COLLECTIVES` that are drawn."""

    collective: int
    rank: int
    step: int | None
    op: str
    group: str | None
    group_description: str | None
    group_ranks: list[int] | None
    sequence: int | None
    size_bytes: int | None
    dtype: str | None
    peer: int | None
    module_path: str | None
    phase: str | None
    late_rank: int | None
    unsure: bool | None
    arrival_ns: int
    end_ns: int | None
    wait_ns: int | None
    transfer_ns: int | None
    busbw: float | None

    @property
    def waits_for(self) -> int | None:
        """The rank that came last; a receive waits for its sender."""
        return self.peer if self.op == "recv" else self.late_rank

    @property
    def name(self) -> str:
        """`all_reduce #42`, `send #3 to rank 1`."""
        number = "" if self.sequence is None else f" #{self.sequence}"
        other = {"send": f" to rank {self.peer}", "recv": f" from rank {self.peer}"}.get(self.op, "")
        return f"{self.op}{number}{other if self.peer is not None else ''}"

    @property
    def come_ns(self) -> int | None:
        """When all were there: the rank waits until then and moves from then on."""
        return None if self.wait_ns is None or self.end_ns is None else self.arrival_ns + self.wait_ns


def draw_collectives(rows: pl.DataFrame, clock: Clock, wanted: Mapping[int, DrawOptions], origin_ns: int) -> Drawing:
    """Draws collectives.

    Args:
        rows: `MERGED_COLLECTIVES`.
        clock: Of the run.
        wanted: By rank; others are not drawn.
        origin_ns: The instant that becomes 0: no arrow lies before it.
    """
    known = rows.filter(pl.col("arrival_ns").is_not_null(), pl.col("rank").is_in(list(wanted)))
    listed = with_lists(known.sort("arrival_ns", "collective").select(_Row._fields))
    shown = [row for row in map(_Row._make, listed.iter_rows())
             if _is_wanted(row, wanted[row.rank])]
    arrows = _arrows(shown, clock, wanted, origin_ns)
    threads = _threads(shown)
    ranks: dict[int, list[DrawnCollective]] = defaultdict(list)
    for row, thread in zip(shown, threads, strict=True):
        ranks[row.rank].append(DrawnCollective(
            thread=thread, slice=DrawnSlice(row.name, row.arrival_ns, _end(row)), args=_args(row),
            parts=tuple(_parts(row, wanted[row.rank].min_duration_ns)),
            arrows=tuple(arrows.get((row.collective, row.rank, row.op), ()))))
    return Drawing(ranks=ranks, counters=[*_waiting(shown), *_in_flight(shown)])


def _end(row: _Row) -> int:
    return row.arrival_ns if row.end_ns is None else max(row.end_ns, row.arrival_ns)


def _is_wanted(row: _Row, wanted: DrawOptions) -> bool:
    end_ns = _end(row)
    if end_ns - row.arrival_ns < wanted.min_duration_ns:
        return False
    return wanted.windows_ns is None or bool(wanted.windows_ns.meets(row.arrival_ns, end_ns))


def _parts(row: _Row, min_duration_ns: int) -> Iterator[DrawnSlice]:
    come_ns = row.come_ns
    if come_ns is None:
        return
    who = "" if row.unsure or row.waits_for is None else f" for rank {row.waits_for}"
    for part in (DrawnSlice(f"waiting{who}", row.arrival_ns, come_ns), DrawnSlice("moving", come_ns, _end(row))):
        if part.end_ns - part.start_ns >= max(min_duration_ns, 1):
            yield part


def _args(row: _Row) -> dict[str, Any]:
    found: dict[str, Any] = {
        "group": row.group_description or row.group, "group name": row.group,
        "ranks": None if row.group_ranks is None else spans(sorted(row.group_ranks)), "bytes": row.size_bytes,
        "dtype": row.dtype, "step": row.step, "module": row.module_path, "phase": row.phase,
        "late rank": None if row.unsure else row.late_rank,
        "wait_us": None if row.wait_ns is None else row.wait_ns / 1000,
        "transfer_us": None if row.transfer_ns is None else row.transfer_ns / 1000,
        "busbw_GB_per_s": None if row.busbw is None else round(row.busbw / 1e9, 6), "collective": row.collective,
        "end": "not known" if row.end_ns is None else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _threads(rows: Sequence[_Row]) -> list[str]:
    """Names of threads: one per group, and lanes beside it for what overlaps."""
    titles = _titles(rows)
    lanes: dict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)  # end and number of each lane
    found = []
    for row in rows:
        title = titles[row.rank, row.group, row.group_description]
        free = lanes[row.rank, title]
        # what begins when another ends stands behind it
        number = heapq.heappop(free)[1] if free and free[0][0] <= row.arrival_ns else len(free)
        heapq.heappush(free, (max(_end(row), row.arrival_ns + 1), number))
        found.append(f"{title} (overlapping{f' {number}' if number > 1 else ''})" if number else title)
    return found


def _titles(rows: Iterable[_Row]) -> dict[tuple[int, str | None, str | None], str]:
    names: dict[tuple[int, str], set[str | None]] = defaultdict(set)
    keys = {(row.rank, row.group, row.group_description) for row in rows}
    for rank, group, description in keys:
        names[rank, _described(group, description)].add(group)
    found = {}
    for rank, group, description in keys:
        title = _described(group, description)
        is_one = len(names[rank, title]) == 1
        found[rank, group, description] = " ".join(filter(None, (PROCESS, title, "" if is_one else group)))
    return found


def _described(group: str | None, description: str | None) -> str:
    return description if description and description != "undefined" else group or ""


def _arrows(rows: Sequence[_Row], clock: Clock, wanted: Mapping[int, DrawOptions],
            origin_ns: int) -> dict[tuple[int, int, str], list[ArrowEnd]]:
    """From the rank that came last to those that waited long enough for it."""
    late = {row.collective: row for row in rows if row.op != "recv" and row.rank == row.late_rank}
    unsure_ns: dict[tuple[int, int], int | None] = {}
    found: dict[tuple[int, int, str], list[ArrowEnd]] = defaultdict(list)
    number = 0
    for row in rows:
        source = late.get(row.collective)
        if source is None or row.rank == source.rank or row.unsure or row.wait_ns is None or row.end_ns is None:
            continue
        pair = min(row.rank, source.rank), max(row.rank, source.rank)
        if pair not in unsure_ns:
            unsure_ns[pair] = clock.pair_uncertainty_ns(pair)
        limit = unsure_ns[pair]
        step_ns = wanted[row.rank].step_ns.get(row.step) if row.step is not None else None
        enough = LONG_NS if step_ns is None else min(LONG_NS, SHARE * step_ns)
        come_ns = row.arrival_ns + row.wait_ns
        # a viewer finds the slices by time: both ends have to lie in one, and the arrow must not run back
        starts, ends = max(source.arrival_ns, come_ns) + 1, max(source.arrival_ns, come_ns) + 2
        if (limit is None or row.wait_ns <= max(limit, SHORTEST_NS) or row.wait_ns < enough or ends >= row.end_ns
                or starts >= _end(source) or starts < origin_ns):
            continue
        found[source.collective, source.rank, source.op].append(ArrowEnd("s", number, starts))
        found[row.collective, row.rank, row.op].append(ArrowEnd("f", number, ends))
        number += 1
    return found


def _waiting(rows: Iterable[_Row]) -> Iterator[CounterValue]:
    """A rank that waits in several collectives at once is one."""
    waits: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for row in rows:
        if row.come_ns is not None:
            waits[row.rank].append((row.arrival_ns, row.come_ns))
    changes: dict[int, int] = defaultdict(int)
    for some in waits.values():
        spent = Intervals.of(*zip(*some, strict=True))
        for start, end in zip(spent.starts.tolist(), spent.ends.tolist(), strict=True):
            changes[start] += 1
            changes[end] -= 1
    return _samples("ranks", "waiting", changes)


def _in_flight(rows: Iterable[_Row]) -> Iterator[CounterValue]:
    """Inputs of the ranks that are moving theirs; where waiting is not known, of those that are in it."""
    changes: dict[int, int] = defaultdict(int)
    for row in rows:
        if row.size_bytes and row.end_ns is not None:
            changes[row.arrival_ns if row.come_ns is None else row.come_ns] += row.size_bytes
            changes[row.end_ns] -= row.size_bytes
    return _samples("bytes", "in flight", changes)


def _samples(what: str, state: str, changes: Mapping[int, int]) -> Iterator[CounterValue]:
    value = 0
    for at_ns in sorted(changes):
        if changes[at_ns]:
            value += changes[at_ns]
            yield CounterValue(what, state, at_ns, value)
