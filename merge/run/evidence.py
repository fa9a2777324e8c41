"""What the tables or summaries of a recorded run show of how its ranks divide the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from distprof.contract.tables import COLLECTIVES, MODULES, PARAMETERS, Table
from distprof.merge.run.group_ranks import as_written_now
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.run.summaries.evidence import evidence_of_summaries
from distprof.merge.run.summaries.evidence import has_exchanged as has_exchanged_by_summary
from distprof.merge.run.tables import DAMAGE, empty, pieces, readable
from distprof.merge.topology.evidence import CALLS, HELD, STATISTICS, TELLING, Evidence, evidence_of

SHOWING = ("trace", "arrivals")
"""Passes that record what ranks exchange."""


def evidence_of_run(run: Run) -> Evidence | None:
    """What the ranks show; None where that is not enough to judge by."""
    has_seen = all(any(rank.recorded.passes.get(name) for name in SHOWING) for rank in run.ranks if rank.recorded)
    if run.summaries is not None:
        return evidence_of_summaries(run.summaries, world_size=run.world_size, has_seen=has_seen)
    parameters = (piece.rows for piece in pieces(run, PARAMETERS.only(*HELD)))
    modules = _read(run.ranks, MODULES, ("module_path", "class_name"), pl.col("class_name").is_in(STATISTICS))
    return evidence_of(parameters, _exchanged(run.ranks) if has_seen else None, world_size=run.world_size,
                       statistics=modules["module_path"].unique().to_list())


def has_exchanged(run: Run) -> bool:
    """Whether the first rank has made a call that may say how ranks divide their work."""
    if run.summaries is not None:
        return has_exchanged_by_summary(run.summaries, run.ranks[0].number)
    return not _exchanged(run.ranks[:1]).is_empty()


def _exchanged(ranks: Sequence[Rank]) -> pl.DataFrame:
    """The calls of the first step that may say how ranks divide their work."""
    return _read(ranks, COLLECTIVES, tuple(CALLS), TELLING & (pl.col("step") == pl.col("step").min()))


def _columns(file: Any, columns: Sequence[str]) -> pl.DataFrame:
    """Those that an older version did not write yet are null."""
    there = pl.scan_parquet(file, glob=False).collect_schema().names()
    found = pl.read_parquet(file, columns=[name for name in columns if name in there], glob=False)
    return as_written_now(found).select(
        pl.col(name) if name in there else pl.lit(None).alias(name) for name in columns)


def _read(ranks: Sequence[Rank], table: Table, columns: Sequence[str], wanted: pl.Expr) -> pl.DataFrame:
    """These columns of some rows, rank by rank.

    None where a file is damaged, which reading its table will tell.
    """
    files = [rank.folder / table.file for rank in ranks if rank.has(table)]
    nothing = empty(table).select(columns)
    try:
        frames = [_columns(readable(file), columns).cast(nothing.schema).filter(wanted) for file in files]
        return pl.concat([nothing, *frames])
    except DAMAGE:
        return nothing
