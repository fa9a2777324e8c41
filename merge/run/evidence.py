"""What the tables or summaries of a recorded run show of how its ranks divide the model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import polars as pl

from distprof.contract.tables import COLLECTIVES, MODULES, PARAMETERS, Table
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.run.summaries.evidence import evidence_of_summaries
from distprof.merge.run.summaries.evidence import has_exchanged as has_exchanged_by_summary
from distprof.merge.run.tables import DAMAGE, empty, pieces, wanted_rows
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


def _read(ranks: Sequence[Rank], table: Table, columns: Sequence[str], wanted: pl.Expr) -> pl.DataFrame:
    """These columns of some rows, rank by rank.

    None of a rank whose file is damaged, which reading its table will tell.
    """
    some = table.only(*columns, "rank")
    frames = [empty(some)]
    for rank in ranks:
        with suppress(*DAMAGE):
            frames += [wanted_rows(rank, some, wanted)] if rank.has(table) else []
    return pl.concat(frames).select(columns)
