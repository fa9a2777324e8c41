"""The choice of a method: a run and what was asked for come in, the run with its clock, checked, goes out."""

from __future__ import annotations

from dataclasses import replace

from distprof.merge.clock.model import Align, Alignment, Clock
from distprof.merge.run.run_model import Run


def aligned(run: Run, align: Align = "auto") -> Run:
    """The run on one clock.

    Args:
        run: As it was opened: aligned by samples, where ranks of one host share a clock.
        align: `auto` takes samples, and collectives where they do not join all ranks; `none` shifts nothing.
    """
    shared = run.clock.method == "shared" and align != "collectives"
    if run.kind == "traces" and (shared or align == "none"):
        clock = run.clock if run.clock.method == "shared" else unaligned(run.clock)
        return replace(run, clock=replace(clock, check=clock.unchecked))
    from distprof.merge.clock.synchronising import checked  # with polars, which takes a while to import

    return replace(run, clock=checked(run, align))


def unaligned(clock: Clock) -> Clock:
    """Every rank as its own clock has it."""
    return replace(clock, method="none", reason="asked", excess_ns=0, ranks={
        rank: Alignment(clock=known.clock) for rank, known in clock.ranks.items()})
