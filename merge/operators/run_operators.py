"""Operators of all ranks of a run in one table, with FLOPs and bytes where they were counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from distprof.contract.problems import Unreadable
from distprof.errors import DataError
from distprof.merge.operators.counted import Coverage, with_counts
from distprof.merge.operators.limits import with_limits
from distprof.merge.operators.merged_operators import merged_operators
from distprof.merge.operators.operator_rows import SCHEMA
from distprof.merge.operators.shape_coverage import ShapeCoverage
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.run.tables import RecordedTables, read_tables
from distprof.merge.run.timelines import steps_of_timeline, with_timelines

if TYPE_CHECKING:
    from distprof.merge.operators.read_operators import Beside


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOperators:
    """What was found."""

    rows: pl.DataFrame
    """`rank_operators` of all ranks, with `flops`, `bytes`, `compute_ns` and `memory_ns`."""
    coverage: Coverage | None
    """None where no FLOPs were counted."""
    by_shapes: ShapeCoverage | None
    """Where none were counted: how far the shapes in the traces tell them. None where there are none."""
    ranks: Sequence[int]
    """Those with a timeline."""
    num_bad: int
    """Slices without a usable duration, which were left out."""
    problems: Sequence[Unreadable]


def run_operators(run: Run, rates: tuple[float | None, float | None] = (None, None), *,
                  num_frames: int = 0, merge: Path | None = None,
                  tables: RecordedTables | None = None,
                  beside: Beside | None = None, take: Callable[[Rank, Any], None] = lambda *_: None) -> RunOperators:
    """Reads the timelines of a run, or what a merge has of them.

    Args:
        run: As it was opened.
        rates: Peak FLOP/s and bytes/s of each rank's device, in place of the published ones.
        num_frames: Functions of Python in `stack`; 0 leaves it null.
        merge: A merge of the run that is elsewhere.
        tables: Of the run, where they were read already.
        beside: What else is done with timelines that are read, where they are read: see `read_operators`.
        take: Gets what that returned.

    Raises:
        DataError: No rank has one.
    """
    run = with_timelines(run)
    if tables is None and run.kind != "traces":
        tables = read_tables(run)
    traced = [rank for rank in run.ranks if rank.trace is not None]
    problems = list[Unreadable]() if tables is None else list(tables.problems)
    by_shapes = tables is None or tables.ops.is_empty()
    found = merged_operators(run, merge, by_shapes=by_shapes) if not num_frames else None
    if found is None:
        from distprof.merge.operators.read_operators import read_operators  # takes a while

        found, unreadable = read_operators(traced, tables, by_shapes=by_shapes, num_frames=num_frames, beside=beside,
                                           take=take)
        problems += unreadable
    if not found:
        raise DataError(f"expected a timeline in {run.path}, found none",
                        hint="--steps trace=6 records one, and so does memory=3" if tables is not None else None)
    rows = pl.concat([pl.DataFrame(schema=SCHEMA), *(one.rows for one, _ in found.values())])
    coverage = None
    if tables is not None:
        steps = pl.concat([steps_of_timeline(tables.steps, rank) for rank in traced])
        rows, coverage = with_counts(rows, tables.ops, steps.group_by("rank").agg(steps=pl.len()))
    told = [one.by_shapes for one, _ in found.values() if one.by_shapes is not None]
    rows = with_limits(rows, run.ranks, rates)
    return RunOperators(
        rows=rows, coverage=coverage, by_shapes=ShapeCoverage.of(told) if told else None, ranks=list(found),
        num_bad=sum(bad for _, bad in found.values()), problems=problems)
