"""Reads the collectives that distprof labelled while recording, a frame for each rank."""

from __future__ import annotations

import polars as pl

from distprof.contract.tables import COLLECTIVES
from distprof.merge.match.rank_rows import RankRows
from distprof.merge.run.run_model import Run
from distprof.merge.run.tables import read_table


def recorded_rows(run: Run) -> RankRows:
    """Rows of every rank that has a table which can be read."""
    found = read_table(run, COLLECTIVES)
    return RankRows(problems=found.problems, frames={
        rank: rows.with_columns(pl.lit(None, pl.String).alias("comms_id")) for rank, rows in found.frames.items()})
