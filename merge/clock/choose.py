"""Chooses how the ranks of a run are brought to one clock, and checks the result against its collectives."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from distprof.merge.clock.model import Align, Alignment, Clock
from distprof.merge.clock.recorded_clock import hosts_of, is_told
from distprof.merge.run.run_model import Run

if TYPE_CHECKING:
    import polars as pl


def needs_collectives(run: Run, recorded: Clock, align: Align) -> bool:
    """True where the clock is estimated from collectives or checked against them.

    Traces of other programs would have to be read once more for that, so it is done only where nothing else helps, or
    where a user says that their clocks are one.
    """
    return run.kind == "distprof" or align == "collectives" or (
        align != "none" and (recorded.method != "shared" or is_told()))


def choose_clock(run: Run, recorded: Clock, align: Align, matched: pl.DataFrame | None) -> Clock:
    """The clock of a run.

    Args:
        run: Its ranks.
        recorded: See `recorded_clock`.
        align: `auto` takes samples, and collectives where they do not join all ranks; `none` shifts nothing.
        matched: Rows as `match` gives them; looked at only where `needs_collectives`.
    """
    if matched is None or not needs_collectives(run, recorded, align):
        clock = recorded if recorded.method == "shared" else unaligned(recorded)
        return replace(clock, check=clock.unchecked)
    from distprof.merge.clock.by_collectives import (  # polars takes a while to import
        check_clock,
        clock_by_collectives,
        synchronising,
    )

    table, clock = synchronising(matched), recorded
    if align == "none" and recorded.method != "shared":
        clock = unaligned(recorded)
    elif align == "collectives" or (align == "auto" and not recorded.aligned):
        estimated = replace(clock_by_collectives(table, hosts_of(run)), set_by_ns=recorded.set_by_ns)
        clock = estimated if estimated.aligned or align == "collectives" else recorded
    return replace(clock, check=check_clock(table, clock))


def unaligned(clock: Clock) -> Clock:
    """The clock that leaves every time as its rank has it."""
    return replace(clock, method="none", reason="asked", excess_ns=0, ranks={
        rank: Alignment(clock=known.clock) for rank, known in clock.ranks.items()})
