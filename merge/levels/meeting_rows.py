"""Kept calls of all ranks as rows like those of `per_collective`, each with how many calls it stands for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from distprof.contract.group_ranks import text_of
from distprof.merge.levels.joined_arrivals import JoinedArrivals, Meeting
from distprof.merge.levels.level_run import LevelRun

OF_ALL = ("group", "group_description", "group_ranks")


def meeting_rows(level: LevelRun) -> pl.DataFrame:
    """A row per kept call, `coded`: texts and `group_ranks` are categories.

    Returns:
        The columns of `per_collective` without lists, and `weight`: calls of the steps that a row stands for,
        `least_bytes` and `most_bytes` of these. An op of a group of which no call was kept has a row without times.
    """
    joined, texts = level.kept, level.kept.texts
    exact = _exact_counts(joined)
    rows = level.measured.calls.drop("bounds")
    sampled = rows.group_by("meeting", "op").agg(pl.len().alias("kept"))
    exact = exact.join(sampled, on=("meeting", "op"), how="left").with_columns(pl.col("kept").fill_null(0))
    number = max(len(level.shown), 1)
    counts = exact.select("meeting", "op", "least_bytes", "most_bytes",
                          weight=pl.col("calls_per_step") * number / pl.col("kept").clip(1))
    rows = rows.join(counts, on=("meeting", "op"), how="left", maintain_order="left")
    unseen = exact.filter(pl.col("kept") == 0).join(counts, on=("meeting", "op")).select(
        "meeting", "op", "dtype", "weight", "least_bytes", "most_bytes", size_bytes="most_bytes",
        num_ranks=pl.Series([joined.meetings[one].num_ranks for one in exact.filter(pl.col("kept") == 0)["meeting"]],
                            dtype=pl.Int64))
    rows = pl.concat([rows, unseen], how="diagonal")
    named = [_category(rows, number_of, name, texts[of]) for number_of, name, of in (
        ("op", "op", "op"), ("dtype", "dtype", "dtype"), ("module", "module_path", "module_path"),
        ("phase", "phase", "phase"))]
    return rows.with_columns(
        *named, *_of_meetings(joined.meetings, rows["meeting"].to_numpy()), pl.int_range(pl.len()).alias("collective"),
        complete=pl.lit(True), mismatch=pl.lit(None, pl.String), matched_by=pl.lit("sequence"),
        number=pl.col("place")).drop("place", "module")


def _exact_counts(joined: JoinedArrivals) -> pl.DataFrame:
    """Calls a step and sizes by meeting and op, of all that was recorded."""
    kinds = joined.kinds
    frame = pl.DataFrame({name: kinds[name] for name in (
        "meeting", "op", "dtype", "calls", "steps", "min_bytes", "max_bytes", "rank")})
    sends = [number for number, name in enumerate(joined.texts["op"]) if name == "send"]
    receives = [number for number, name in enumerate(joined.texts["op"]) if name == "recv"]
    frame = frame.with_columns(pl.col("op").replace(dict.fromkeys(receives, sends[0]) if sends else {}))
    of_rank = frame.group_by("rank", "meeting", "op").agg(
        pl.col("dtype").first(), pl.col("calls").sum() / pl.col("steps").max().clip(1), pl.col("min_bytes").min(),
        pl.col("max_bytes").max())
    return of_rank.group_by("meeting", "op", maintain_order=True).agg(
        pl.col("dtype").first().cast(pl.Int64), pl.col("calls").max().alias("calls_per_step"),
        pl.col("min_bytes").min().alias("least_bytes"), pl.col("max_bytes").max().alias("most_bytes")).cast(
        {"meeting": pl.Int64, "op": pl.Int64}).sort("meeting", "op")


def _category(rows: pl.DataFrame, number: str, name: str, texts: Sequence[str]) -> pl.Series:
    index = rows.select(pl.when(pl.col(number) >= 0).then(number)).to_series()
    named = pl.Series(name, texts, dtype=pl.String).cast(pl.Categorical)
    return named.gather(index).alias(name) if len(named) else pl.repeat(
        None, len(rows), dtype=pl.Categorical(), eager=True).alias(name)


def _of_meetings(meetings: Sequence[Meeting], number: Any) -> list[pl.Series]:
    """Group, description and ranks of each row, by its meeting."""
    index = pl.Series(np.asarray(number, np.int64))
    columns: dict[str, list[str | None]] = {"group": [one.group.name for one in meetings],
               "group_description": [one.group.description for one in meetings],
               "group_ranks": [text_of(one.group.ranks) or None for one in meetings]}
    return [pl.Series(name, values, dtype=pl.String).cast(pl.Categorical).gather(index).alias(name)
            for name, values in columns.items()]
