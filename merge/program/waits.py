"""When threads were blocked by collectives: as recorded, or inferred from the timeline; and errors of clocks."""

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
"""Columns of recorded waits."""
LARGEST_NS = 1_000_000
"""Longer collectives are not used to estimate clock errors, and larger errors are not corrected."""
ENOUGH = 8
"""Number of collectives needed to estimate the clock error of a rank."""
MOST_ROWS = 200_000
"""Approximate largest number of rows from which clock errors are estimated."""
ROUNDS = 10
"""Largest number of iterations of the estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Waits of all ranks for collectives. Times in int64 ns on the common clock."""

    row: Integers
    """Row of the collective."""
    begin_ns: Integers
    end_ns: Integers
    missed: Flags
    """True for waits that only other ranks show."""


def waits_of(rows: pl.DataFrame, did: Mapping[int, RankActivity]) -> Waits:
    """Finds the waits of all ranks.

    If recorders saw waits, these are all. Otherwise the timeline of a rank shows when it was blocked; a rank without a
    timeline is assumed to wait in every op that ends before its next call. Waits hidden by a timeline show in the times
    of the next calls. What was missed on a rank is inferred from the others.

    Args:
        rows: Collectives by rank and call, with `rank`, `enqueue_ns`, `end_ns`, and, if recorded, `COLUMNS`.
        did: What ranks did, for those that have a timeline.
    """
    rank, enqueue, end = (rows[name].to_numpy() for name in ("rank", "enqueue_ns", "end_ns"))
    # on a device, recorded waits of the host are short calls
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
    """Returns how long each op was in flight if it has no known wait but may have had one; else 0.

    If recorders saw waits, or no timeline may hide them, there were none: the timeline of a GPU hides none.
    """
    if not did or len(_recorded(rows, np.ones(len(rows), bool))[0]):
        return np.zeros(len(rows), np.int64)
    found = np.maximum((rows["end_ns"] - rows["enqueue_ns"]).to_numpy(), 0)
    found[waits.row[waits.end_ns > waits.begin_ns]] = 0
    found[np.isin(rows["rank"].to_numpy(), [rank for rank, one in did.items() if one.on_device])] = 0
    return found


def _with_hidden(rows: pl.DataFrame,
                 found: list[tuple[Integers, Integers, Integers]]) -> list[tuple[Integers, Integers, Integers]]:
    """Adds waits that nothing shows directly; an op that had ended when a thread came to wait for it may hide one."""
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
    """Infers waits: a slice waits for one op, the pause at the end of DDP's backward for all ops in flight."""
    slices = [(start, stop, False) for start, stop in zip(did.wait_starts.tolist(), did.wait_ends.tolist(),
                                                         strict=True)]
    pauses = [(start, stop, True) for start, stop in _between_calls(did.pauses, enqueue)]
    late_ns = {True: RESUMED_NS, False: LATE_NS}
    if did.on_device:  # a stream goes on when the op ends, and one clock sees both
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
    # a thread that calls the next op no longer waits
    following = np.append(enqueue, np.iinfo(np.int64).max)[np.searchsorted(enqueue, begin, "right")]
    return row, begin, np.maximum(np.minimum(until, following), begin)


LATE_NS = 1_000_000
"""The end of an op may be recorded up to this long (at most the length of the wait) after a thread that waited in a
slice went on. The end that ended a pause is known to be near, so `RESUMED_NS` applies there."""


def _between_calls(pauses: Intervals, enqueue: Integers) -> list[tuple[int, int]]:
    """Splits pauses at calls: a thread that calls an op does not wait at that time."""
    cuts = np.unique(enqueue[pauses.covers(enqueue)])
    starts, ends = np.concatenate((pauses.starts, cuts)), np.concatenate((pauses.ends, cuts))
    return list(zip(np.sort(starts).tolist(), np.sort(ends).tolist(), strict=True))


def _ended_by(over: list[int], end: Any, start: int) -> list[int]:
    """Returns the op whose end ended a wait; if there is none, the first that had ended."""
    during = [row for row in over if end[row] > start]
    return [max(during, key=lambda row: end[row])] if during else over[:1]


def skew_of(table: pl.DataFrame, waits: Waits, ranks: Integers) -> Integers:
    """Estimates how far the clock of each rank is ahead, in ns; 0 if that is not clear.

    An aligned clock may be wrong, within its bounds, by more than ranks wait for each other in tensor parallel groups.
    Small collectives end at the same time on all ranks: the median remaining difference between their ends is the clock
    error.

    Args:
        table: Collectives by rank and call.
        waits: Waits for them.
        ranks: Numbers of the ranks, ascending.
    """
    rank, collective = np.searchsorted(ranks, table["rank"].to_numpy()), table["collective"].to_numpy()
    rows = np.flatnonzero(_known(table, waits) & _small(table, collective))
    # a sample of many collectives is enough; hashing makes it independent of patterns in the job
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
    """Returns the median if most values differ from it by less than it differs from 0, else 0."""
    if len(apart) < ENOUGH:
        return 0.0
    middle = float(np.median(apart))
    return middle if float(np.median(np.abs(apart - middle))) < abs(middle) else 0.0


def _ends(table: pl.DataFrame, waits: Waits) -> Integers:
    ends = table["end_ns"].to_numpy().copy()
    np.minimum.at(ends, waits.row, waits.end_ns)
    return ends


def _known(table: pl.DataFrame, waits: Waits) -> Any:
    """Marks rows whose end is exact: the timeline has it, or a thread was waiting for it."""
    found = (table["timed_by"] == "timeline").fill_null(value=False).to_numpy().copy()
    found[waits.row[~waits.missed & (waits.end_ns - waits.begin_ns >= BLOCKED_NS)]] = True
    return found & table["op"].cast(pl.String).is_in(BOUNDING_CLOCKS).to_numpy()


def _small(table: pl.DataFrame, collective: Integers) -> Flags:
    held = table["end_ns"].to_numpy() - table["arrival_ns"].to_numpy()
    shortest = np.full(int(collective.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(shortest, collective, held)
    return shortest[collective] <= LARGEST_NS
