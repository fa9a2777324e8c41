"""What a rank adds to the operators of its run, made where the rank is read: all rows of a large run take gigabytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from distprof.merge.operators.counted import with_counts
from distprof.merge.operators.grouping import added_up
from distprof.merge.operators.limits import with_limits
from distprof.merge.operators.operator_rows import RankOperators
from distprof.merge.operators.selection import Selection, selected
from distprof.merge.operators.shapes.coverage import ShapeCoverage
from distprof.merge.run.run_model import Rank

Rates = tuple[float | None, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The part of all rows that a command shows."""

    selection: Selection
    keys: Sequence[str]
    """What rows are kept apart by, besides rank and step."""

    def of(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Added up."""
        return added_up(selected(rows, self.selection), self.keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankShare:
    """Of a rank with a timeline."""

    rank: int
    rows: pl.DataFrame
    """`rank_operators` with `flops`, `bytes`, `compute_ns` and `memory_ns`, or of these what was asked for."""
    by_shapes: ShapeCoverage | None
    num_bad: int
    """Slices that were left out."""
    flops: float
    """A step, of calls that the count pass saw as well; likewise `calls`."""
    calls: float
    num_rows: int
    """Before anything was chosen; likewise `steps`, `phases` and `has_stacks`."""
    steps: Sequence[int]
    phases: Sequence[str]
    has_stacks: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareMaker:
    """Makes it; can be pickled."""

    rank: Rank
    ops: pl.DataFrame | None
    """`OPS` of the rank; None where it was not counted."""
    windows: Sequence[tuple[int, int, int]] | None
    """Start, end and number of the steps in its timeline; None where its own marks show them."""
    rates: Rates
    """Peak FLOP/s and bytes/s of its device, in place of the published ones."""
    asked: Asked | None
    """None: all rows."""

    def of(self, found: RankOperators, num_bad: int) -> RankShare:
        """Takes what was read of the rank."""
        rows, number, coverage = found.rows, self.rank.number, None
        if self.ops is not None:
            rows, coverage = with_counts(rows, self.ops, pl.DataFrame(
                {"rank": [number], "steps": [len(self.windows or ())]}))
        rows = with_limits(rows, [self.rank], self.rates)
        steps, phases = (rows[name].drop_nulls().unique().sort().to_list() for name in ("step", "phase"))
        return RankShare(
            rank=number, rows=rows if self.asked is None else self.asked.of(rows), by_shapes=found.by_shapes,
            num_bad=num_bad, flops=0.0 if coverage is None else coverage.flops,
            calls=0.0 if coverage is None else coverage.calls,
            num_rows=len(rows), steps=steps, phases=phases, has_stacks=not rows["stack"].is_null().all())
