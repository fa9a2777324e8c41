"""Puts times in tables of all ranks on the clock of the run."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from distprof.merge.clock.model import Clock


def on_common_clock(clock: Clock, frame: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """The rows with these columns, each of its rank's clock, on the common clock; null stays null."""
    ranks = frame["rank"].to_numpy()
    return frame.with_columns(
        pl.when(pl.col(name).is_not_null()).then(
            pl.Series(name, clock.to_common_ns(ranks, frame[name].fill_null(0).to_numpy()))).alias(name)
        for name in names)
