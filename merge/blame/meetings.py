"""Collectives in which ranks can wait for each other, in order of time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from distprof.contract.ops import POINT_TO_POINT
from distprof.merge.blame.rank_collectives import WAITED, with_receivers


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """One collective that all ranks of its group leave only after all have come."""

    number: int
    step: int
    ranks: Any
    """Ascending."""
    arrival_ns: Any
    end_ns: Any
    first_ns: int
    """First arrival."""
    left_ns: int
    """Last end."""
    late: int
    """Which of `ranks` came last."""


def meetings(rows: pl.DataFrame) -> list[Meeting]:
    """Collectives in which ranks can wait for each other, by last arrival; messages in which a receiver waited too.

    Args:
        rows: `MERGED_COLLECTIVES`.
    """
    one_sided = pl.col("op").is_in(POINT_TO_POINT)
    waited = pl.when(one_sided).then((pl.col("wait_ns") > 0).any()).otherwise(pl.col("wait_ns").is_not_null().all())
    known = with_receivers(rows.select(WAITED)).filter(waited.over("collective"), pl.col("num_ranks") > 1)
    known = known.filter(pl.col("end_ns").is_not_null().all().over("collective"))
    table = known.sort("collective", "rank").select(
        "collective", pl.col("step").fill_null(-1), "rank", "arrival_ns", "end_ns")
    number, step, rank, arrival, end = (table[name].to_numpy() for name in table.columns)
    if not len(number):
        return []
    starts = np.flatnonzero(np.diff(number, prepend=-1))
    stops = np.append(starts[1:], len(number))
    last = np.maximum.reduceat(arrival, starts)
    is_last = np.flatnonzero(arrival == np.repeat(last, stops - starts))
    late = is_last[np.searchsorted(is_last, starts)] - starts
    columns = (starts, stops, number[starts], step[starts], np.minimum.reduceat(arrival, starts),
               np.maximum.reduceat(end, starts), late)
    order = np.argsort(last, kind="stable")
    return [Meeting(number=which, step=when, ranks=rank[start:stop], arrival_ns=arrival[start:stop],
                    end_ns=end[start:stop], first_ns=first, left_ns=left, late=who)
            for start, stop, which, when, first, left, who in zip(
                *(column[order].tolist() for column in columns), strict=True)]
