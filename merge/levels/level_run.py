"""A run of many ranks, from the files of its hosts: its clock, its steps, and its communication measured."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from distprof.arrays import Integers
from distprof.contract.collective_ops import POINT_TO_POINT, text_of
from distprof.contract.passes import ARRIVALS, TRACE
from distprof.freed_memory import give_back
from distprof.merge.clock.choose import hosts_of, recorded_clock
from distprof.merge.clock.model import Check, Clock
from distprof.merge.cost.choice import group_key
from distprof.merge.cost.collective_sums import per_collective
from distprof.merge.cost.measures import measured_collectives
from distprof.merge.levels.joined_arrivals import JoinedArrivals, Meeting, joined_arrivals
from distprof.merge.levels.measured_meetings import MeasuredMeetings, measured_meetings, odd_meetings
from distprof.merge.match.matching import match
from distprof.merge.match.rank_rows import recorded_rows
from distprof.merge.run.run_model import Run

if TYPE_CHECKING:
    from distprof.arrays import Array

SETTLES = 3
"""From this many steps of a pass on the first is left out: what records them warms up, on each rank in its own time."""
MEETING = ("group", "group_ranks", "sender", "receiver")


@dataclass(frozen=True, kw_only=True)
class LevelRun:
    """What is known without the tables of all ranks. Times are on the common clock."""

    run: Run
    clock: Clock
    steps: pl.DataFrame
    """`STEPS` of all ranks, on their own clocks."""
    joined: JoinedArrivals
    """Calls of all ranks, with times those of `seen`."""
    seen: Sequence[int]
    """Steps with a timeline, where ranks with tables have one; else those without."""
    traced: Sequence[int]
    """Steps that count and have a timeline, where ranks with tables have one."""
    arrivals: Sequence[int]
    """Steps that count and have none."""
    first_left_out: int | None
    """The first traced step, where it does not count."""
    odd: Array
    """Meetings that are matched row by row."""

    @cached_property
    def measured(self) -> MeasuredMeetings:
        """Of the steps that are seen. Numbers of meetings and texts are those of `joined`."""
        return measured_meetings(self.joined, self.clock, hosts_of(self.run), self.seen, self.odd)

    @property
    def checked_clock(self) -> Clock:
        """Held against causality, by calls that no rank leaves before all have entered."""
        return replace(self.clock, check=check_of(self.measured, self.clock))

    @property
    def shown(self) -> Sequence[int]:
        """Steps that means are of."""
        return self.traced or self.arrivals


def level_run(run: Run, steps: pl.DataFrame) -> LevelRun:
    """Reads calls; they are measured when that is asked for.

    Args:
        run: Opened by the files of its hosts.
        steps: `STEPS` of its ranks.
    """
    assert run.summaries is not None
    traced, arrivals = (sorted(steps.filter(pl.col("pass") == name)["step"].unique().to_list())
                        for name in (TRACE, ARRIVALS))
    seen, counted = traced or arrivals, _settled(traced)
    give_back()
    joined = joined_arrivals(run.summaries, seen)
    return LevelRun(run=run, clock=recorded_clock(run), steps=steps, joined=joined, seen=seen,
                    odd=odd_meetings(joined),
                    traced=counted, arrivals=_settled(arrivals),
                    first_left_out=traced[0] if len(counted) < len(traced) else None)


def _settled(steps: list[int]) -> list[int]:
    return steps[1:] if len(steps) >= SETTLES else steps


def check_of(measured: MeasuredMeetings, clock: Clock) -> Check:
    """Holds a clock against causality, by calls that no rank leaves before all have entered."""
    allowed = (clock.pair_uncertainty_ns(clock.known_ranks) or 0) + 2
    each = measured.calls.filter(pl.col("bounds"), pl.col("end_spread_ns").is_not_null()).select(
        spread="end_spread_ns", late=pl.col("last_arrival_ns") - (pl.col("last_end_ns") - pl.col("end_spread_ns")))
    broken = each.filter(pl.col("late") > 2)["late"].to_list()
    spread = {name: each["spread"].quantile(share, interpolation="higher")
              for name, share in (("p50", 0.5), ("p95", 0.95), ("max", 1.0))}
    return Check(num_collectives=len(each), violations=len(broken), largest_violation_ns=max(broken, default=None),
                 allowed_violation_ns=allowed,
                 end_spread_ns={name: int(value) for name, value in spread.items() if value is not None})


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
