"""Matches, aligns and measures a run, in this order: clocks need matches, costs need clocks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from distprof.contract.problems import CallsDiffer, Problem
from distprof.contract.tables import COLLECTIVES
from distprof.merge.clock.choose import choose_clock, hosts_of, needs_collectives, recorded_clock
from distprof.merge.clock.model import Align, Clock
from distprof.merge.run.run_model import Run

if TYPE_CHECKING:
    import polars as pl

    from distprof.merge.cost.measured_parts import CollectivePieces

HELD_ROWS = 1 << 16
"""Rows of collectives that are in memory at once: 35 MB, while they are matched and measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """A run on one clock, and what its communication cost."""

    run: Run
    """With what matching found out about it."""
    clock: Clock
    collectives: pl.DataFrame | None
    """`MERGED_COLLECTIVES`; None where they were not asked for, or there are too many of them to be held."""
    parts: CollectivePieces | None = None
    """The same in pieces, where there are too many."""

    @property
    def pieces(self) -> CollectivePieces | None:
        """`MERGED_COLLECTIVES` piece by piece, held or not; None where they were not asked for."""
        if self.parts is not None or self.collectives is None:
            return self.parts
        from distprof.merge.cost.measured_parts import CollectivePieces

        return CollectivePieces.held(self.collectives)

    def held(self) -> MeasuredRun:
        """The same with all collectives in memory."""
        return self if self.parts is None else replace(self, collectives=self.parts.whole(), parts=None)

    def noting(self, problems: Iterable[Problem]) -> MeasuredRun:
        """The same with what was found to be incomplete later."""
        return replace(self, run=self.run.noting(problems))


def measured_run(run: Run, align: Align = "auto", *, collectives: bool = True, folder: Path | None = None,
                 held_rows: int | None = None) -> MeasuredRun:
    """Reads and matches the collectives of a run at most once.

    Args:
        run: As it was opened.
        align: How clocks are aligned.
        collectives: False where only the clock is wanted: traces of other programs are then not read unless the clock
            takes it.
        folder: For files; with it collectives of more than `held_rows` rows are not held, but given in `parts`. Where
            clocks are not joined by samples they are: all of them say how far these are apart.
        held_rows: Rows of collectives that are in memory at once; `HELD_ROWS` where it is not told.
    """
    recorded = recorded_clock(run)
    if folder is not None and collectives and recorded.aligned and align in ("auto", "samples"):
        in_parts = _in_parts(run, recorded, folder, held_rows or HELD_ROWS)
        if in_parts is not None:
            return in_parts
    if not collectives and not needs_collectives(run, recorded, align):
        return MeasuredRun(run=run, clock=choose_clock(run, recorded, align, None), collectives=None)
    from distprof.merge.cost.measures import measured_collectives  # with polars, which takes a while to import
    from distprof.merge.match.matched_run import match_run
    from distprof.merge.match.mismatches import num_mismatches

    matched = match_run(run)
    run = run.noting(matched.problems)
    clock = choose_clock(run, recorded, align, matched.rows)
    if not collectives:
        return MeasuredRun(run=run, clock=clock, collectives=None)
    return MeasuredRun(run=run.noting(differing(num_mismatches(matched.rows)), matched.remarks), clock=clock,
                       collectives=measured_collectives(matched.rows, clock, hosts_of(run)))


def _in_parts(run: Run, clock: Clock, folder: Path, held_rows: int) -> MeasuredRun | None:
    """None where there are few rows, or none that can be read."""
    num_rows = num_collectives(run)
    if num_rows <= held_rows:
        return None
    from distprof.merge.cost.measured_parts import measured_parts
    from distprof.merge.match.matched_run import RowParts
    from distprof.merge.match.rank_rows import recorded_batches

    rows = RowParts(num_rows, run.world_size, folder, held_rows)
    for batch in recorded_batches(run):
        rows.add(batch.rows, batch.ended)
        run = run.noting(batch.problems)
    if not len(rows):
        return None
    parts, check, num_differing = measured_parts(rows, clock, hosts_of(run), folder)
    return MeasuredRun(run=run.noting(differing(num_differing)), clock=replace(clock, check=check), collectives=None,
                       parts=parts)


def differing(num_collectives: int) -> list[Problem]:
    """What is said of collectives about which ranks disagree."""
    return [CallsDiffer(num_collectives=num_collectives)] if num_collectives else []


def num_collectives(run: Run) -> int:
    """Rows of collectives that the ranks recorded, as they say; 0 of other programs."""
    return sum(rank.recorded.files.get(COLLECTIVES.file) or 0 for rank in run.ranks if rank.recorded is not None)
