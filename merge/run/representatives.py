"""Chooses ranks whose tables are read in a run of many ranks: those that represent others or stand out, or all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import polars as pl

from distprof.contract.mesh import DATA_PARALLEL
from distprof.contract.passes import WAIT
from distprof.contract.tables import COLLECTIVES, EVENTS
from distprof.merge.run.run_model import Rank, Run

LOOKED_AT = 4
"""Number of replicas that are searched for one whose folder exists."""
MOST_OF_GROUPS = 1024
"""Limit on representatives, each of which stands for all ranks with its coordinates on the non-data-parallel axes."""
Place = tuple[tuple[str, int], ...]
"""Coordinates of a rank on the axes that divide the model, as (axis, coordinate)."""
TOLD_BY_TABLES = ("no wait", "no clock")
"""Reasons why summaries show no delays although timelines, or clocks fitted to all collectives, may."""
MOST_ROWS = 1_000_000
"""Up to this many collectives of all ranks are read without being asked for: they take about 3 GB."""
MOST_EVENTS_OF_RANK = 3_000_000
"""A rank with more events keeps tables from being read without being asked for: two ranks are in memory at once."""


def place_of(rank: Rank) -> Place:
    """Returns the coordinates of a rank on the axes that divide the model."""
    return tuple((axis, at) for axis, at in (rank.coordinates or {}).items() if axis not in DATA_PARALLEL)


def of_places(run: Run) -> list[Rank]:
    """Returns, for each place on the axes that divide the model, the lowest of its first ranks whose folder exists."""
    places = defaultdict[Place, list[Rank]](list)
    for rank in run.ranks:
        places[place_of(rank)].append(rank)
    found = (next((rank for rank in ranks[:LOOKED_AT] if rank.has_folder), None) for ranks in places.values())
    return [rank for rank in found if rank is not None][:MOST_OF_GROUPS]


def standing_out(steps: pl.DataFrame, late: Iterable[int] = ()) -> list[int]:
    """Returns late ranks, then the slowest, the median and the fastest rank by mean step time."""
    means = steps.filter(pl.col("pass") != WAIT).group_by("rank").agg(pl.col("duration_ns").mean())
    ordered = means.sort("duration_ns", "rank")["rank"].to_list()
    extremes = [ordered[-1], ordered[len(ordered) // 2], ordered[0]] if ordered else []
    return list(dict.fromkeys([*late, *extremes]))


def tables_tell(run: Run, blind: str | None) -> bool:
    """Returns whether all tables should be read after all: they may show more, exist, and are small enough.

    Args:
        run: A run that was opened by the files of its hosts.
        blind: Why these files do not show who was late; None if they do.
    """
    if blind not in TOLD_BY_TABLES:
        return False
    return all(rank.recorded is not None and rank.has_folder for rank in run.ranks) and are_few(run)


def are_few(run: Run) -> bool:
    """Returns whether the tables of all ranks are small enough to fit into memory on any machine."""
    files = [rank.recorded.files for rank in run.ranks if rank.recorded is not None]
    return (sum(one.get(COLLECTIVES.file) or 0 for one in files) <= MOST_ROWS
            and max((one.get(EVENTS.file) or 0 for one in files), default=0) <= MOST_EVENTS_OF_RANK)
