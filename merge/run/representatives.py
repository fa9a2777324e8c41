"""Ranks of a run of many whose tables are read: those that stand for others or stand out, or all of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import polars as pl

from distprof.contract.mesh import DATA_PARALLEL
from distprof.contract.passes import WAIT
from distprof.contract.tables import COLLECTIVES, EVENTS
from distprof.merge.run.run_model import Rank, Run

LOOKED_AT = 4
"""Replicas that are looked at for one whose folder is there."""
MOST_OF_GROUPS = 1024
"""Ranks that stand for those of their place on all axes but the data-parallel ones."""
Place = tuple[tuple[str, int], ...]
"""Axes that divide the model, and the coordinates on them."""
TOLD_BY_TABLES = ("no wait", "no clock")
"""Why delays could not be seen, where timelines, or clocks that are estimated from all collectives, may show them."""
MOST_ROWS = 1_000_000
"""Collectives of all ranks that are read without being asked for: some 3 GB."""
MOST_EVENTS_OF_RANK = 3_000_000
"""Two ranks are in memory at once."""


def place_of(rank: Rank) -> Place:
    """Where a rank stands on the axes that divide the model."""
    return tuple((axis, at) for axis, at in (rank.coordinates or {}).items() if axis not in DATA_PARALLEL)


def of_places(run: Run) -> list[Rank]:
    """One rank of each place on the axes that divide the model, whose folder is there; the lowest."""
    places = defaultdict[Place, list[Rank]](list)
    for rank in run.ranks:
        places[place_of(rank)].append(rank)
    found = (next((rank for rank in ranks[:LOOKED_AT] if rank.has_folder), None) for ranks in places.values())
    return [rank for rank in found if rank is not None][:MOST_OF_GROUPS]


def standing_out(steps: pl.DataFrame, late: Iterable[int] = ()) -> list[int]:
    """Late ranks, the slowest, the median and the fastest, by the mean of their steps."""
    means = steps.filter(pl.col("pass") != WAIT).group_by("rank").agg(pl.col("duration_ns").mean())
    ordered = means.sort("duration_ns", "rank")["rank"].to_list()
    extremes = [ordered[-1], ordered[len(ordered) // 2], ordered[0]] if ordered else []
    return list(dict.fromkeys([*late, *extremes]))


def tables_tell(run: Run, blind: str | None) -> bool:
    """True where all tables are read after all: they may tell more, are there, and are not too large.

    Args:
        run: Opened by the files of its hosts.
        blind: Why these do not tell who was late; None where they do.
    """
    if blind not in TOLD_BY_TABLES:
        return False
    return all(rank.recorded is not None and rank.has_folder for rank in run.ranks) and are_few(run)


def are_few(run: Run) -> bool:
    """True where the tables of all ranks take no more memory than can be had for sure."""
    files = [rank.recorded.files for rank in run.ranks if rank.recorded is not None]
    return (sum(one.get(COLLECTIVES.file) or 0 for one in files) <= MOST_ROWS
            and max((one.get(EVENTS.file) or 0 for one in files), default=0) <= MOST_EVENTS_OF_RANK)
