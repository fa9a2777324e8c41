"""The part of `distprof waits` about the queues of devices."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from distprof.merge.text.phrases import rank_list
from distprof.merge.waits.queues import FULL, summed_queues
from distprof.reporters.page import Page
from distprof.units import counted, duration, percent

HEADER = ("rank", "commands", "short", "mean delay", "longest", "mean depth", "deepest")


def show_queues(queues: pl.DataFrame | None, ranks: Sequence[int], page: Page, *, asked: bool) -> None:
    """A row for each rank with a device.

    Args:
        queues: `QUEUE` of the steps that are shown; None where there are no timelines.
        ranks: Those that are shown.
        page: Where it goes.
        asked: Says so where there is nothing to show.
    """
    found = pl.DataFrame() if queues is None else summed_queues(queues)
    if found.is_empty():
        if asked:
            page.line()
            page.line("device queues: no timeline shows them (record one with --steps trace=6)"
                      if queues is None else f"device queues: {rank_list(ranks)} without a device: operators run when "
                                             "they are called, so nothing is queued")
        return
    page.line()
    page.line("device queues: from the end of the call that launches a command until the command starts")
    page.line()
    page.table(HEADER, [
        [str(row["rank"]), str(row["commands"]), percent(row["short"] / row["commands"] if row["commands"] else None),
         duration(row["mean_delay_ns"]), duration(row["longest_ns"]),
         f"{row['mean_depth'] or 0:.1f}", str(row["deepest"])]
        for row in found.iter_rows(named=True)])
    page.line("short: commands that run for less time than the call that launches them takes (the profiler slows down "
              "that call); these alone cannot keep a device busy")
    for row in found.filter(pl.col("full_ns") > 0).iter_rows(named=True):
        page.line(f"rank {row['rank']}: streams had {FULL:,} commands in their queue for {duration(row['full_ns'])} in "
                  "all: the queue was full, and a call that launches another command waits")
    unsent = int(found["unsent"].sum())
    if unsent:
        page.line(f"not counted: {counted(unsent, 'command')} whose launch is unknown")
