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
"""Number of rows of collectives that are in memory at a time: 35 MB while they are matched and measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """A run on one clock, and what its communication cost."""

    run: Run
    """The run, with what matching found out about it."""
    clock: Clock
    collectives: pl.DataFrame | None
    """`MERGED_COLLECTIVES`; None if they were not requested, or are too many to be held."""
    parts: CollectivePieces | None = None
    """The same in pieces, if they are too many; else None."""

    @property
    def pieces(self) -> CollectivePieces | None:
        """`MERGED_COLLECTIVES` in pieces, held or not; None if they were not requested."""
        if self.parts is not None or self.collectives is None:
            return self.parts
        from distprof.merge.cost.measured_parts import CollectivePieces

        return CollectivePieces.held(self.collectives)

    def held(self) -> MeasuredRun:
        """Returns the same with all collectives in memory."""
        return self if self.parts is None else replace(self, collectives=self.parts.whole(), parts=None)

    def noting(self, problems: Iterable[Problem]) -> MeasuredRun:
        """Returns the same with problems that were found later."""
        return replace(self, run=self.run.noting(problems))


def measured_run(run: Run, align: Align = "auto", *, collectives: bool = True, folder: Path | None = None,
                 held_rows: int | None = None) -> MeasuredRun:
    """Reads and matches the collectives of a run, at most once.

    Args:
        run: The run as it was opened.
        align: How clocks are aligned.
        collectives: False if only the clock is wanted: traces of other programs are then read only if it needs them.
        folder: Folder for temporary files. If it is given, more than `held_rows` rows are not held, but returned in
            `parts`, unless clocks have to be aligned by collectives, which needs all of them.
        held_rows: Number of rows of collectives in memory at a time; `HELD_ROWS` if None.
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
    """Matches and measures in parts; None if there are few rows, or none that can be read."""
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
    """Returns the problem of collectives about which ranks disagree."""
    return [CallsDiffer(num_collectives=num_collectives)] if num_collectives else []


def num_collectives(run: Run) -> int:
    """Returns the number of rows of collectives that the ranks state to have recorded; 0 for other programs."""
    return sum(rank.recorded.files.get(COLLECTIVES.file) or 0 for rank in run.ranks if rank.recorded is not None)
