"""Matches, aligns and measures a run, in this order: clocks need matches, costs need clocks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from distprof.contract.problems import Problem
from distprof.merge.clock.choose import choose_clock, needs_collectives
from distprof.merge.clock.model import Align, Clock
from distprof.merge.clock.recorded_clock import hosts_of, recorded_clock
from distprof.merge.run.run_model import Run

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """A run on one clock, and what its communication cost."""

    run: Run
    """With what matching found out about it."""
    clock: Clock
    collectives: pl.DataFrame | None
    """`MERGED_COLLECTIVES`; None where they were not asked for."""

    def noting(self, problems: Iterable[Problem]) -> MeasuredRun:
        """The same with what was found to be incomplete later."""
        return replace(self, run=self.run.noting(problems))


def measured_run(run: Run, align: Align = "auto", *, collectives: bool = True) -> MeasuredRun:
    """Reads and matches the collectives of a run at most once.

    Args:
        run: As it was opened.
        align: How clocks are aligned.
        collectives: False where only the clock is wanted: traces of other programs are then not read unless the clock
            takes it.
    """
    recorded = recorded_clock(run)
    if not collectives and not needs_collectives(run, recorded, align):
        return MeasuredRun(run=run, clock=choose_clock(run, recorded, align, None), collectives=None)
    from distprof.merge.cost.collectives import measured_collectives  # with polars, which takes a while to import
    from distprof.merge.match.matched_run import match_run

    matched = match_run(run)
    run = run.noting(matched.problems)
    clock = choose_clock(run, recorded, align, matched.rows)
    if not collectives:
        return MeasuredRun(run=run, clock=clock, collectives=None)
    return MeasuredRun(run=run.noting(remarks=matched.remarks), clock=clock,
                       collectives=measured_collectives(matched.rows, clock, hosts_of(run)))
