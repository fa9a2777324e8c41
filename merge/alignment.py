"""The choice of a method: a run and what was asked for come in, the run with its clock, checked, goes out."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from distprof.merge.clock import Alignment, Clock
from distprof.merge.clock_collectives import COLUMNS, SYNCHRONISING, check, clock_by_collectives
from distprof.merge.collectives import match_collectives
from distprof.merge.kernel_collectives import kernel_collectives
from distprof.merge.options import Align
from distprof.merge.run import Run, sampled

NO_COLLECTIVES = pl.DataFrame(schema=dict.fromkeys(COLUMNS, pl.Int64))


def aligned(run: Run, align: Align = "auto") -> Run:
    """The run on one clock.

    Args:
        run: As it was opened: aligned by samples, where ranks of one host share a clock.
        align: `auto` takes samples, and collectives where they do not join all ranks; `none` shifts nothing.
    """
    shared = run.clock.method == "shared" and align != "collectives"
    table = synchronising(run) if run.kind == "distprof" else NO_COLLECTIVES if shared or align == "none" else (
        kernel_collectives(run))
    clock = _clock(run, align, table)
    return replace(run, clock=replace(clock, check=check(table, clock)))


def _clock(run: Run, align: Align, table: pl.DataFrame) -> Clock:
    by_samples = run.clock
    if align == "none" and by_samples.method != "shared":
        return replace(by_samples, method="none", description="--align none", excess_ns=0, ranks={
            rank: Alignment(clock=known.clock) for rank, known in by_samples.ranks.items()})
    if align == "collectives" or (align == "auto" and not by_samples.aligned):
        by_collectives = clock_by_collectives(table, {rank.number: sampled(rank).host for rank in run.ranks})
        if by_collectives.aligned or align == "collectives":
            return by_collectives
    return by_samples


def synchronising(run: Run) -> pl.DataFrame:
    """Collectives that bound the clocks of their ranks, with times as the ranks have them."""
    rows = match_collectives(run)
    return rows.filter(
        pl.col("complete"), pl.col("op").is_in(SYNCHRONISING), (pl.col("size_bytes") > 0) | (pl.col("op") == "barrier"),
        pl.col("end_ns").is_not_null().all().over("collective"), pl.col("num_ranks") > 1,
    ).select("collective", "rank", pl.col("enqueue_ns").alias("start_ns"), "end_ns").select(COLUMNS)
