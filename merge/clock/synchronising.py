"""Collectives that bound clocks: a run comes in, its clock by them, or checked against them, goes out."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from distprof.merge.clock.by_collectives import COLUMNS, SYNCHRONISING, check, clock_by_collectives
from distprof.merge.clock.choose import unaligned
from distprof.merge.clock.model import Align, Clock
from distprof.merge.cost.collectives import matched
from distprof.merge.run.run_model import Run, sampled


def checked(run: Run, align: Align) -> Clock:
    """The clock that `align` asks for, held against causality."""
    table = synchronising(run)
    clock = _clock(run, align, table)
    return replace(clock, check=check(table, clock))


def _clock(run: Run, align: Align, table: pl.DataFrame) -> Clock:
    by_samples = run.clock
    if align == "none" and by_samples.method != "shared":
        return unaligned(by_samples)
    if align == "collectives" or (align == "auto" and not by_samples.aligned):
        by_collectives = clock_by_collectives(table, {rank.number: sampled(rank).host for rank in run.ranks})
        if by_collectives.aligned or align == "collectives":
            return by_collectives
    return by_samples


def synchronising(run: Run) -> pl.DataFrame:
    """Collectives that bound the clocks of their ranks, with times as the ranks have them."""
    rows = matched(run)
    certain = pl.col("matched_by").is_in(("id", "sequence"))
    # which of alike ones a rank lacks, their order does not tell: then nothing that rests on it counts
    certain |= pl.lit(bool(rows.filter(~certain)["complete"].all()))
    return rows.filter(
        certain, pl.col("complete") | pl.col("mismatch").is_null(), pl.col("op").is_in(SYNCHRONISING),
        (pl.col("size_bytes").is_null() | (pl.col("size_bytes") > 0)) | (pl.col("op") == "barrier"),
        pl.col("end_ns").is_not_null().all().over("collective"), pl.col("num_ranks") > 1,
    ).select("collective", "rank", pl.coalesce("start_ns", "enqueue_ns").alias("start_ns"), "end_ns").select(COLUMNS)
