"""Collectives that distprof recorded: the tables of the ranks come in, one frame of rows goes out."""

from __future__ import annotations

import polars as pl

from distprof.contract import COLLECTIVES
from distprof.merge.run import Run
from distprof.merge.tables import load


def labelled_rows(run: Run) -> pl.DataFrame:
    """The rows of all ranks, times as the ranks have them; see `rows_of` for the columns."""
    return load(run, COLLECTIVES).with_columns(pl.lit(None, pl.String).alias("comms_id"))
