"""Calls of all ranks as rows like those of `per_collective`: of whole meetings as they are, the others matched."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import polars as pl

from distprof.arrays import Integers
from distprof.contract.collective_ops import POINT_TO_POINT, text_of
from distprof.merge.clock.choose import hosts_of
from distprof.merge.cost.choice import group_key
from distprof.merge.cost.collective_sums import per_collective
from distprof.merge.cost.measures import measured_collectives
from distprof.merge.levels.joined_arrivals import Meeting
from distprof.merge.levels.level_run import LevelRun
from distprof.merge.match.matching import match
from distprof.merge.match.rank_rows import recorded_rows

MEETING = ("group", "group_ranks", "sender", "receiver")


def meeting_rows(level: LevelRun) -> pl.DataFrame:
    """A row per call of the steps that are seen, `coded`: texts and `group_ranks` are categories.

    Returns:
        The columns of `per_collective` without `ranks`; `group_ranks` are texts.
    """
    joined, texts = level.joined, level.joined.texts
    rows = level.measured.calls.drop("bounds")
    named = [_category(rows, number_of, name, texts[of]) for number_of, name, of in (
        ("op", "op", "op"), ("dtype", "dtype", "dtype"), ("module", "module_path", "module_path"),
        ("phase", "phase", "phase"))]
    is_message = pl.Series([one.is_message for one in joined.meetings], dtype=pl.Boolean)
    matched_by = pl.Series(["sequence", "peer"], dtype=pl.Categorical)
    numbers = rows["meeting"].to_numpy()
    return rows.with_columns(
        *named, *_of_meetings(joined.meetings, numbers), pl.int_range(pl.len()).alias("collective"),
        complete=pl.lit(True), mismatch=pl.lit(None, pl.Categorical), number=pl.col("place"),
        matched_by=matched_by.gather(is_message.gather(pl.Series(numbers)).cast(pl.Int64)),
    ).with_columns(group_key().alias("group_key")).drop("place", "module", "meeting")


def odd_rows(level: LevelRun) -> pl.DataFrame:
    """The columns of `per_collective` of calls in meetings whose ranks did not call the same, or some of which are
    missing: of the steps that are seen, and of others those about which ranks disagree.
    """
    joined, without = level.joined, [rank.number for rank in level.run.without_summary]
    cells = np.isin(joined.cell_meeting, level.odd)
    ranks = {*joined.ranks[np.unique(joined.cell_rank[cells])].tolist(), *without}
    rows = _matched(level, ranks, _keys([joined.meetings[number] for number in level.odd]), without)
    is_seen = pl.col("step").is_in(list(level.seen)) | pl.col("mismatch").is_not_null()
    return per_collective(rows.filter(is_seen))


def _matched(level: LevelRun, ranks: Collection[int], keys: pl.DataFrame, without: Sequence[int]) -> pl.DataFrame:
    """Calls in some meetings, and all of ranks that are in no file of a host."""
    found = recorded_rows(level.run.of_ranks(ranks))
    op = pl.col("op").cast(pl.String)
    is_pair = op.is_in(POINT_TO_POINT)
    mine = found.rows.select(
        "rank", pl.col("group", "group_ranks").cast(pl.String),
        sender=pl.when(is_pair).then(pl.when(op == "send").then("rank").otherwise("peer")),
        receiver=pl.when(is_pair).then(pl.when(op == "send").then("peer").otherwise("rank")))
    held = mine.join(keys.unique().with_columns(held=pl.lit(True)), on=MEETING, how="left", nulls_equal=True,
                     maintain_order="left")
    rows = found.rows.filter(held["held"].fill_null(False) | held["rank"].is_in(without))
    matched = match(rows, ended=found.ended, world_size=level.run.world_size)
    return measured_collectives(matched, level.clock, hosts_of(level.run))


def _keys(meetings: Sequence[Meeting]) -> pl.DataFrame:
    return pl.DataFrame([(one.group.name, text_of(one.group.ranks), one.sender, one.receiver) for one in meetings],
                        schema={"group": pl.String, "group_ranks": pl.String, "sender": pl.Int64,
                                "receiver": pl.Int64}, orient="row")


def _category(rows: pl.DataFrame, number: str, name: str, texts: Sequence[str]) -> pl.Series:
    index = rows.select(pl.when(pl.col(number) >= 0).then(number)).to_series()
    named = pl.Series(name, texts, dtype=pl.String).cast(pl.Categorical)
    return named.gather(index).alias(name) if len(named) else pl.repeat(
        None, len(rows), dtype=pl.Categorical(), eager=True).alias(name)


def _of_meetings(meetings: Sequence[Meeting], number: Integers) -> list[pl.Series]:
    """Group, description and ranks of each row, by its meeting."""
    index = pl.Series(np.asarray(number, np.int64))
    columns: dict[str, list[str | None]] = {
        "group": [one.group.name for one in meetings], "group_description": [one.group.description for one in meetings],
        "group_ranks": [text_of(one.group.ranks) or None for one in meetings]}
    return [pl.Series(name, values, dtype=pl.String).cast(pl.Categorical).gather(index).alias(name)
            for name, values in columns.items()]
