"""Collectives that distprof recorded: the tables of the ranks come in, rows a rank go out."""

from __future__ import annotations

import polars as pl

from distprof.contract.tables import COLLECTIVES
from distprof.merge.run.run_model import Run
from distprof.merge.run.tables import load_each


def labelled_rows(run: Run) -> dict[int, pl.DataFrame]:
    """Rank -> its rows, times as the rank has them; without ranks whose table is not there or damaged."""
    return {rank: rows.with_columns(pl.lit(None, pl.String).alias("comms_id"))
            for rank, rows in load_each(run, COLLECTIVES).items()}
