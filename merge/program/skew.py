"""What clocks of ranks are still off by: nobody leaves a small collective much later than the others."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl

from distprof.arrays import Flags, Floats, Integers
from distprof.contract.collective_ops import BOUNDING_CLOCKS
from distprof.merge.program.waits import Waits
from distprof.merge.replay.graph import BLOCKED_NS

LARGEST_NS = 1_000_000
"""Collectives that take longer say nothing; nor is more corrected."""
ENOUGH = 8
"""Collectives that it takes."""
MOST_ROWS = 200_000
ROUNDS = 10


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
