"""A run of many ranks, read from the files of its hosts: its clock, its steps, and its measured communication."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from distprof.arrays import Integers
from distprof.contract.collective_ops import WAITING_FOR_ALL, text_of
from distprof.contract.passes import ARRIVALS, TRACE
from distprof.contract.rank_summary import NO_INTEGER
from distprof.freed_memory import give_back
from distprof.merge.clock.choose import hosts_of, recorded_clock
from distprof.merge.clock.model import Check, Clock, RankClocks
from distprof.merge.cost.choice import group_key
from distprof.merge.cost.collective_sums import per_collective
from distprof.merge.cost.measured_meetings import MeasuredMeetings, measured_meetings
from distprof.merge.cost.measures import measured_collectives
from distprof.merge.match.matched_run import match_meetings, unlike_meetings
from distprof.merge.run.joined_calls import JoinedCalls, joined_calls
from distprof.merge.run.run_model import Run

if TYPE_CHECKING:
    from distprof.arrays import Array

SETTLES = 3
"""From this many steps of a pass on, the first does not count: recording warms up in it, at each rank's own pace."""


@dataclass(frozen=True, kw_only=True)
class JoinedRun:
    """What is known without the tables of all ranks. Times are on the common clock."""

    run: Run
    clock: Clock
    steps: pl.DataFrame
    """`STEPS` of all ranks, on their own clocks."""
    calls: JoinedCalls
    """Calls of all ranks, with times for those in the steps `seen`."""
    seen: Sequence[int]
    """Steps with a timeline, if ranks with tables have one; else those without."""
    traced: Sequence[int]
    """Steps that count and have a timeline, if ranks with tables have one."""
    arrivals: Sequence[int]
    """Steps that count and have no timeline."""
    first_left_out: int | None
    """The first traced step, if it does not count; else None."""
    unlike: Array
    """Indices of meetings that are matched row by row."""

    @cached_property
    def measured(self) -> MeasuredMeetings:
        """Measured calls of the steps `seen`. Numbers of meetings and texts are those of `calls`."""
        found = measured_meetings(self.calls, self.clock, hosts_of(self.run), self.seen, self.unlike)
        give_back()  # polars cannot use memory that arrays have taken
        return found

    @cached_property
    def meetings(self) -> pl.DataFrame:
        """What the calls of each meeting have in common, in columns of `per_collective`; `ranks` is a text."""
        of = self.calls.meetings
        found = pl.DataFrame({
            "group": [one.group.name for one in of], "group_description": [one.group.description for one in of],
            "group_ranks": [text_of(one.group.ranks) or None for one in of],
            "ranks": [text_of(one.ranks) for one in of],
            "matched_by": ["peer" if one.is_message else "sequence" for one in of]}, schema=dict.fromkeys(
                ("group", "group_description", "group_ranks", "ranks", "matched_by"), pl.String))
        return found.with_columns(group_key().alias("group_key")).cast(pl.Categorical)

    @cached_property
    def unlike_rows(self) -> pl.DataFrame:
        """`MERGED_COLLECTIVES` of calls that are matched row by row, and of ranks known only from their own tables."""
        calls, alone = self.calls, [rank.number for rank in self.run.in_folders_alone]
        ranks = {*calls.ranks[np.unique(calls.cell_rank[np.isin(calls.cell_meeting, self.unlike)])].tolist(), *alone}
        matched = match_meetings(self.run, ranks, [calls.meetings[number] for number in self.unlike], alone)
        return measured_collectives(matched, self.clock, hosts_of(self.run))

    @property
    def checked_clock(self) -> Clock:
        """The clock, checked against causality by calls that no rank leaves before all have entered."""
        return replace(self.clock, check=check_of(
            self.measured, self.clock, precision_ns=int(self.calls.unit_ns.max(initial=1))))

    @property
    def shown(self) -> Sequence[int]:
        """The steps over which means are taken."""
        return self.traced or self.arrivals


def joined_run(run: Run, steps: pl.DataFrame) -> JoinedRun:
    """Reads calls. They are measured on demand.

    Args:
        run: A run opened by the files of its hosts.
        steps: `STEPS` of its ranks.
    """
    traced, arrivals = (sorted(steps.filter(pl.col("pass") == name)["step"].unique().to_list())
                        for name in (TRACE, ARRIVALS))
    seen, counted = traced or arrivals, _settled(traced)
    give_back()
    calls = joined_calls(run.arrivals(), seen)
    return JoinedRun(run=run, clock=recorded_clock(run), steps=steps, calls=calls, seen=seen,
                     unlike=unlike_meetings(calls), traced=counted, arrivals=_settled(arrivals),
                     first_left_out=traced[0] if len(counted) < len(traced) else None)


def _settled(steps: list[int]) -> list[int]:
    return steps[1:] if len(steps) >= SETTLES else steps


def check_of(measured: MeasuredMeetings, clock: Clock, *, precision_ns: int = 1) -> Check:
    """Checks a clock against causality, by calls that no rank leaves before all have entered.

    Args:
        measured: Measured calls.
        clock: The clock.
        precision_ns: Error bound of each time: the files of hosts have them in coarser units if steps are long.
    """
    allowed = (clock.pair_uncertainty_ns(clock.known_ranks) or 0) + 2 * precision_ns
    each = measured.calls.lazy().filter(pl.col("bounds"), pl.col("end_spread_ns").is_not_null()).select(
        spread="end_spread_ns", late=pl.col("last_arrival_ns") - (pl.col("last_end_ns") - pl.col("end_spread_ns")),
    ).collect()
    broken = each.filter(pl.col("late") > 2 * precision_ns)["late"].to_list()
    spread = {name: each["spread"].quantile(share, interpolation="higher")
              for name, share in (("p50", 0.5), ("p95", 0.95), ("max", 1.0))}
    return Check(num_collectives=len(each), violations=len(broken), largest_violation_ns=max(broken, default=None),
                 allowed_violation_ns=allowed,
                 end_spread_ns={name: int(value) for name, value in spread.items() if value is not None})


def meeting_rows(many: JoinedRun) -> pl.DataFrame:
    """Returns a row per call of the steps `seen`, `coded`: texts, `group_ranks` and `ranks` are categories.

    Returns:
        The columns of `per_collective`.
    """
    calls, first = many.measured.calls, 0
    found = list[pl.DataFrame]()
    for length in calls["step"].chunk_lengths():  # joining to several chunks would copy all of them
        found.append(_meeting_rows(many, calls.slice(first, length), first))
        first += length
    return pl.concat(found)


def _meeting_rows(many: JoinedRun, rows: pl.DataFrame, first: int) -> pl.DataFrame:
    named = [_category(rows, number, name, many.calls.texts[name]) for number, name in (
        ("op", "op"), ("dtype", "dtype"), ("module", "module_path"), ("phase", "phase"))]
    return rows.drop("bounds", "by_call", "place", "module", "meeting").with_columns(
        *named, *many.meetings[rows["meeting"]], pl.int_range(first, first + len(rows)).alias("collective"),
        rows["place"].alias("number"), complete=pl.lit(True), mismatch=pl.lit(None, pl.Categorical))


def unlike_calls(many: JoinedRun) -> pl.DataFrame:
    """Returns the columns of `per_collective` for calls of the meetings `unlike`: those in the steps `seen`, and those
    in other steps about which ranks disagree."""
    is_seen = pl.col("step").is_in(list(many.seen)) | pl.col("mismatch").is_not_null()
    return per_collective(many.unlike_rows.filter(is_seen))


def rows_of_ranks(many: JoinedRun, ranks: Collection[int]) -> pl.DataFrame:
    """Returns the columns `OF_ROWS` of `MERGED_COLLECTIVES` of some ranks in the steps `seen`. Collectives are numbered
    as by `meeting_rows`, followed by those of `unlike_calls`."""
    calls = many.calls
    cells = np.flatnonzero(np.isin(calls.cell_rank, np.flatnonzero(np.isin(calls.ranks, list(ranks))))
                           & np.isin(calls.cell_step, many.seen) & ~np.isin(calls.cell_meeting, many.unlike))
    number, clocks = calls.sequence_calls[calls.cell_sequence[cells]], RankClocks(many.clock, calls.ranks)
    found = [_placed_rows(calls, clocks, cells[number == count], int(count)) for count in np.unique(number)]
    rows = pl.concat([pl.DataFrame(schema=_PLACED), *found])
    each = many.measured.calls.lazy().with_columns(collective=pl.int_range(pl.len())).filter(
        pl.col("meeting").is_in(rows["meeting"].unique().implode()))
    waits = [number for number, name in enumerate(calls.texts["op"]) if name in WAITING_FOR_ALL]
    mine = _waiting(rows.lazy().join(each, on=("step", "meeting", "place"), how="inner"), waits).select(OF_ROWS)
    unlike = many.unlike_rows.filter(pl.col("rank").is_in(list(ranks))).select(OF_ROWS).with_columns(
        pl.col("collective") + len(many.measured.calls))
    return pl.concat([mine.collect(), unlike]).sort("collective", "rank")


def _waiting(rows: pl.LazyFrame, waits: Sequence[int]) -> pl.LazyFrame:
    """Adds the arrival of each rank and how long it waited for the last one, as defined in merge/cost/measures.py."""
    arrival = pl.when("by_call").then("enqueue_ns").otherwise(pl.coalesce("start_ns", "enqueue_ns"))
    held = pl.col("end_ns") - pl.col("arrival_ns")
    is_known = pl.col("op").is_in(waits) & pl.col("arrival_spread_ns").is_not_null() & (held >= 0)
    return rows.with_columns(arrival_ns=arrival).with_columns(
        wait_ns=pl.when(is_known).then(pl.min_horizontal(pl.col("last_arrival_ns") - pl.col("arrival_ns"), held)))


OF_ROWS = ("collective", "step", "rank", "arrival_ns", "end_ns", "wait_ns")
"""Columns that `rows_of_ranks` returns."""
_TIMES = ("enqueue_ns", "start_ns", "end_ns")
_PLACED: dict[str, Any] = {**dict.fromkeys(("step", "rank", *_TIMES), pl.Int64), "meeting": pl.Int32, "place": pl.Int32}


def _placed_rows(calls: JoinedCalls, clocks: RankClocks, cells: Integers, count: int) -> pl.DataFrame:
    """Returns the times of cells with `count` calls each, on the common clock."""
    index, shape = calls.cell_rank[cells], (len(cells), count)
    of_cells = {"step": calls.cell_step[cells], "meeting": calls.cell_meeting[cells], "rank": calls.ranks[index]}
    columns = {name: np.broadcast_to(values[:, None], shape) for name, values in of_cells.items()}
    columns["place"] = np.broadcast_to(np.arange(count), shape)
    times = {name: clocks.common_ns(index[:, None], values) for name, values in calls.own_ns(cells, 0, count).items()}
    columns |= {name: times[name] for name in _TIMES}
    found = pl.DataFrame({name: columns[name].reshape(-1).astype(np.int64) for name in _PLACED})
    known = [pl.when(pl.col(name) != NO_INTEGER).then(name).alias(name) for name in _TIMES]
    return found.with_columns(*known).cast({"meeting": pl.Int32, "place": pl.Int32})


def _category(rows: pl.DataFrame, number: str, name: str, texts: Sequence[str]) -> pl.Series:
    index = rows.select(pl.when(pl.col(number) >= 0).then(number)).to_series()
    named = pl.Series(name, texts, dtype=pl.String).cast(pl.Categorical)
    return named.gather(index).alias(name) if len(named) else pl.repeat(
        None, len(rows), dtype=pl.Categorical(), eager=True).alias(name)
