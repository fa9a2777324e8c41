"""When threads stood still for collectives: as recorded, else inferred from the timeline; what clocks are off by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl

from distprof.arrays import Flags, Floats, Integers
from distprof.contract.collective_ops import BOUNDING_CLOCKS
from distprof.merge.activity.intervals import Intervals
from distprof.merge.activity.rank_activity import RESUMED_NS, RankActivity
from distprof.merge.program.missed_waits import missed_waits, waits_at_once
from distprof.merge.replay.graph import BLOCKED_NS

COLUMNS = ("wait_start_ns", "wait_end_ns")
LARGEST_NS = 1_000_000
"""Collectives that take longer say nothing; nor is more corrected."""
ENOUGH = 8
"""Collectives that it takes."""
MOST_ROWS = 200_000
ROUNDS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Waits of all ranks for collectives; times in int64 ns on the common clock."""

    row: Integers
    """Of the collective."""
    begin_ns: Integers
    end_ns: Integers
    missed: Flags
    """True for those that only other ranks show."""


def waits_of(rows: pl.DataFrame, did: Mapping[int, RankActivity]) -> Waits:
    """Waits of all ranks.

    Where recorders saw waits, those are all. Else the timeline of a rank shows where it stood still; without a timeline
    it is taken to wait in every op that ends before its next call. Waits that a timeline hides show in what threads
    call next. What was missed on a rank is taken from the others.

    Args:
        rows: Collectives by rank and call, with `rank`, `enqueue_ns`, `end_ns`, and the columns above, which may be
            missing.
        did: What ranks did, of those that have a timeline.
    """
    rank, enqueue, end = (rows[name].to_numpy() for name in ("rank", "enqueue_ns", "end_ns"))
    # on a device, the waits of the host that were recorded are short calls
    on_device = np.isin(rank, [number for number, one in did.items() if one.on_device])
    found = [_recorded(rows, ~on_device)]
    if not len(found[0][0]):
        found.append(_of_all(rank, enqueue, end, ~np.isin(rank, list(did))))
        for number in sorted(set(np.unique(rank).tolist()) & set(did)):
            first, stop = np.searchsorted(rank, number), np.searchsorted(rank, number, "right")
            row, begin, until = _inferred(enqueue[first:stop], end[first:stop], did[number])
            found.append((row + first, begin, until))
        found = _with_hidden(rows, found) if did else found
    seen = [np.concatenate(parts) for parts in zip(*found, strict=True)]
    missed = missed_waits(rows, *seen)
    row, begin, until = (np.concatenate(parts) for parts in zip(seen, missed, strict=True))
    return Waits(row=row, begin_ns=begin, end_ns=until, missed=np.arange(len(row)) >= len(seen[0]))


def unseen_ns(rows: pl.DataFrame, waits: Waits, did: Mapping[int, RankActivity]) -> Any:
    """How long each op was under way for which no wait is known, though there may have been one.

    Where recorders saw waits, or there is no timeline that may hide them, there was none: that of a GPU hides none.
    """
    if not did or len(_recorded(rows, np.ones(len(rows), bool))[0]):
        return np.zeros(len(rows), np.int64)
    found = np.maximum((rows["end_ns"] - rows["enqueue_ns"]).to_numpy(), 0)
    found[waits.row[waits.end_ns > waits.begin_ns]] = 0
    found[np.isin(rows["rank"].to_numpy(), [rank for rank, one in did.items() if one.on_device])] = 0
    return found


def _with_hidden(rows: pl.DataFrame,
                 found: list[tuple[Integers, Integers, Integers]]) -> list[tuple[Integers, Integers, Integers]]:
    """Adds waits that nothing shows; an op that was over when a thread came to wait for it may hide one."""
    row, begin, until = (np.concatenate(parts) for parts in zip(*found, strict=True))
    hidden = waits_at_once(rows, row[until > begin], begin[until > begin])
    rest = ~np.isin(row, hidden)
    called, end = rows["enqueue_ns"].to_numpy(), rows["end_ns"].gather(hidden).to_numpy()
    went_on = np.clip(end, called[hidden], called[hidden + 1])
    return [(row[rest], begin[rest], until[rest]), (hidden, called[hidden], went_on)]


def _recorded(rows: pl.DataFrame, chosen: Flags) -> tuple[Integers, Integers, Integers]:
    if not set(COLUMNS) <= set(rows.columns):
        return (np.empty(0, np.int64),) * 3
    row = np.flatnonzero(chosen & (rows[COLUMNS[0]].is_not_null() & rows[COLUMNS[1]].is_not_null()).to_numpy())
    begin, end = (rows[name].gather(row).to_numpy() for name in COLUMNS)
    return row, begin, end


def _of_all(rank: Integers, enqueue: Integers, end: Integers, chosen: Flags) -> tuple[Integers, Integers, Integers]:
    later = np.append(enqueue[1:], np.iinfo(np.int64).max)
    later[:-1][rank[1:] != rank[:-1]] = np.iinfo(np.int64).max
    row = np.flatnonzero(chosen & (end <= later) & (end >= enqueue))
    return row, enqueue[row], end[row]


def _inferred(enqueue: Integers, end: Integers, did: RankActivity) -> tuple[Integers, Integers, Integers]:
    """Slices wait for one op, the pause at the end of DDP's backward for all that are under way."""
    slices = [(start, stop, False) for start, stop in zip(did.wait_starts.tolist(), did.wait_ends.tolist(),
                                                         strict=True)]
    pauses = [(start, stop, True) for start, stop in _between_calls(did.pauses, enqueue)]
    late_ns = {True: RESUMED_NS, False: LATE_NS}
    if did.on_device:  # a stream goes on when the op ends, and both are seen by one clock
        late_ns = {True: 0, False: 0}
    waiting, found, place = list[int](), list[tuple[int, int, int]](), 0
    for start, stop, is_pause in sorted(slices + pauses):
        while place < len(enqueue) and enqueue[place] <= start:
            waiting.append(place)
            place += 1
        over = [row for row in waiting if end[row] <= stop + min(late_ns[is_pause], stop - start)]
        chosen = over if is_pause else _ended_by(over, end, start)
        found += [(row, max(start, int(enqueue[row])), max(min(stop, int(end[row])), start)) for row in chosen]
        gone = set(chosen)
        waiting = [row for row in waiting if row not in gone]
    row, begin, until = np.array(found, np.int64).reshape(-1, 3).T
    # a thread that calls the next op waits no longer
    following = np.append(enqueue, np.iinfo(np.int64).max)[np.searchsorted(enqueue, begin, "right")]
    return row, begin, np.maximum(np.minimum(until, following), begin)


LATE_NS = 1_000_000
"""By so much, but by no more than was waited, the end of an op may be noted after a thread went on that waited in a
slice; where it paused, an end that ended the pause is known to be near, and `RESUMED_NS` holds."""


def _between_calls(pauses: Intervals, enqueue: Integers) -> list[tuple[int, int]]:
    """A thread that calls an op does not wait just then."""
    cuts = np.unique(enqueue[pauses.covers(enqueue)])
    starts, ends = np.concatenate((pauses.starts, cuts)), np.concatenate((pauses.ends, cuts))
    return list(zip(np.sort(starts).tolist(), np.sort(ends).tolist(), strict=True))


def _ended_by(over: list[int], end: Any, start: int) -> list[int]:
    """The op whose end ended a wait; without one, the first that was over."""
    during = [row for row in over if end[row] > start]
    return [max(during, key=lambda row: end[row])] if during else over[:1]


def skew_of(table: pl.DataFrame, waits: Waits, ranks: Integers) -> Integers:
    """By how much the clock of each rank is ahead; ns, 0 where that does not show clearly.

    A clock that was aligned within its bounds may be off by more than ranks wait for each other in tensor parallel
    groups. Small collectives end at one time on all ranks: what is left between their ends, in the median, is the
    clock.

    Args:
        table: Collectives by rank and call.
        waits: For them.
        ranks: Numbers of the ranks, ascending.
    """
    rank, collective = np.searchsorted(ranks, table["rank"].to_numpy()), table["collective"].to_numpy()
    rows = np.flatnonzero(_known(table, waits) & _small(table, collective))
    # some of many collectives are enough; which of them, has to do with no pattern of the job
    held = collective[rows] * 2_654_435_761 % 1_000_003 * len(rows) < MOST_ROWS * 1_000_003
    rows = rows[held]
    members = np.bincount(collective[rows]) if len(rows) else np.zeros(1)
    rows = rows[members[collective[rows]] > 1]
    found = np.zeros(len(ranks))
    if not len(rows):
        return found.astype(np.int64)
    rank, collective = rank[rows], collective[rows]
    end = _ends(table, waits)[rows]
    end = (end - end.min()).astype(float)
    bounds = np.searchsorted(rank, np.arange(len(ranks) + 1))
    for _ in range(ROUNDS):
        now = end - found[rank]
        apart = now - (np.bincount(collective, now) / np.maximum(np.bincount(collective), 1))[collective]
        more = np.array([_clear(apart[first:stop]) for first, stop in pairwise(bounds.tolist())])
        if not more.any():
            break
        found += more
    return np.where(np.abs(found) <= LARGEST_NS, found, 0).astype(np.int64)


def _clear(apart: Floats) -> float:
    """The median, where most differ from it by less than it differs from 0."""
    if len(apart) < ENOUGH:
        return 0.0
    middle = float(np.median(apart))
    return middle if float(np.median(np.abs(apart - middle))) < abs(middle) else 0.0


def _ends(table: pl.DataFrame, waits: Waits) -> Integers:
    ends = table["end_ns"].to_numpy().copy()
    np.minimum.at(ends, waits.row, waits.end_ns)
    return ends


def _known(table: pl.DataFrame, waits: Waits) -> Any:
    """Rows whose end is exact: the timeline has it, or a thread was waiting for it."""
    found = (table["timed_by"] == "timeline").fill_null(value=False).to_numpy().copy()
    found[waits.row[~waits.missed & (waits.end_ns - waits.begin_ns >= BLOCKED_NS)]] = True
    return found & table["op"].cast(pl.String).is_in(BOUNDING_CLOCKS).to_numpy()


def _small(table: pl.DataFrame, collective: Integers) -> Flags:
    held = table["end_ns"].to_numpy() - table["arrival_ns"].to_numpy()
    shortest = np.full(int(collective.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(shortest, collective, held)
    return shortest[collective] <= LARGEST_NS
