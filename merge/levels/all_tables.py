"""Tables of all ranks, which are read where files of hosts do not tell who was late: waits of GPUs lie in kernels."""

from __future__ import annotations

from distprof.contract.tables import COLLECTIVES, EVENTS
from distprof.merge.levels.representatives import has_folder
from distprof.merge.run.run_model import Run

TOLD_BY_TABLES = ("no wait", "no clock")
"""Why delays could not be seen, where timelines, or clocks that are estimated from all collectives, may show them."""
MOST_ROWS = 1_000_000
"""Collectives of all ranks that are read without being asked for: some 3 GB."""
MOST_EVENTS_OF_RANK = 3_000_000
"""Two ranks are in memory at once."""


def tables_tell(run: Run, blind: str | None) -> bool:
    """True where all tables are read after all: they may tell more, are there, and are not too large.

    Args:
        run: Opened by the files of its hosts.
        blind: Why these do not tell who was late; None where they do.
    """
    if blind not in TOLD_BY_TABLES:
        return False
    return all(rank.recorded is not None and has_folder(rank) for rank in run.ranks) and are_few(run)


def are_few(run: Run) -> bool:
    """True where the tables of all ranks take no more memory than can be had for sure."""
    files = [rank.recorded.files for rank in run.ranks if rank.recorded is not None]
    return (sum(one.get(COLLECTIVES.file) or 0 for one in files) <= MOST_ROWS
            and max((one.get(EVENTS.file) or 0 for one in files), default=0) <= MOST_EVENTS_OF_RANK)
