"""A run of many ranks, from the files of its hosts: its clock, its steps, and its communication measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import polars as pl

from distprof.contract.passes import ARRIVALS, TRACE
from distprof.freed_memory import give_back
from distprof.merge.clock.choose import hosts_of, recorded_clock
from distprof.merge.clock.model import Check, Clock
from distprof.merge.levels.joined_arrivals import JoinedArrivals, joined_arrivals
from distprof.merge.levels.measured_meetings import MeasuredMeetings, measured_meetings, odd_meetings
from distprof.merge.run.run_model import Run

if TYPE_CHECKING:
    from distprof.arrays import Array

SETTLES = 3
"""From this many steps of a pass on the first is left out: what records them warms up, on each rank in its own time."""


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
