"""Operators of all ranks of a run in one table, with FLOPs and bytes where they were counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from distprof.contract.problems import Unreadable
from distprof.errors import DataError
from distprof.merge.operators.counted import Coverage
from distprof.merge.operators.merged_operators import merged_operators
from distprof.merge.operators.rank_share import Asked, RankShare, Rates, ShareMaker
from distprof.merge.operators.shape_coverage import ShapeCoverage
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.run.tables import RecordedTables, read_tables
from distprof.merge.run.timelines import steps_of_timeline, with_timelines

if TYPE_CHECKING:
    from distprof.merge.operators.read_operators import Beside


@dataclass(frozen=True, kw_only=True)
class RunOperators:
    """What was found."""

    shares: Sequence[RankShare]
    """Of ranks with a timeline."""
    coverage: Coverage | None
    """None where no FLOPs were counted."""
    problems: Sequence[Unreadable]

    @cached_property
    def rows(self) -> pl.DataFrame:
        """What was asked for, of all ranks; see `RankShare`."""
        return pl.concat([one.rows for one in self.shares])

    @property
    def ranks(self) -> list[int]:
        """Those with a timeline."""
        return [one.rank for one in self.shares]

    @property
    def by_shapes(self) -> ShapeCoverage | None:
        """Where none were counted: how far the shapes in the traces tell them. None where there are none."""
        told = [one.by_shapes for one in self.shares if one.by_shapes is not None]
        return ShapeCoverage.of(told) if told else None

    @property
    def num_bad(self) -> int:
        """Slices without a usable duration, which were left out."""
        return sum(one.num_bad for one in self.shares)

    def all(self, name: str) -> set[Any]:
        """Values of `steps` or `phases` of all ranks."""
        return {value for one in self.shares for value in getattr(one, name)}


def run_operators(run: Run, rates: Rates = (None, None), *,
                  num_frames: int = 0, merge: Path | None = None,
                  tables: RecordedTables | None = None, asked: Asked | None = None,
                  beside: Beside | None = None, take: Callable[[Rank, Any], None] = lambda *_: None) -> RunOperators:
    """Reads the timelines of a run, or what a merge has of them.

    Args:
        run: As it was opened.
        rates: Peak FLOP/s and bytes/s of each rank's device, in place of the published ones.
        num_frames: Functions of Python in `stack`; 0 leaves it null.
        merge: A merge of the run that is elsewhere.
        tables: Of the run, where they were read already.
        asked: What of the rows is needed; all of a thousand ranks take gigabytes.
        beside: What else is done with timelines that are read, where they are read: see `read_operators`.
        take: Gets what that returned.

    Raises:
        DataError: No rank has one.
    """
    run = with_timelines(run)
    if tables is None and run.kind != "traces":
        tables = read_tables(run)
    makers = [*_makers([rank for rank in run.ranks if rank.trace is not None], tables, rates, asked)]
    problems = list[Unreadable]() if tables is None else list(tables.problems)
    by_shapes = tables is None or tables.ops.is_empty()
    found = merged_operators(run, merge, makers, by_shapes=by_shapes) if not num_frames else None
    if found is None:
        from distprof.merge.operators.read_operators import read_operators  # takes a while

        found = list[RankShare]()
        for one in read_operators(makers, by_shapes=by_shapes, num_frames=num_frames, beside=beside, take=take):
            if isinstance(one, RankShare):
                found.append(one)
            else:
                problems.append(one)
    if not found:
        raise DataError(f"expected a timeline in {run.path}, found none",
                        hint="--steps trace=6 records one, and so does memory=3" if tables is not None else None)
    return RunOperators(shares=found, problems=problems, coverage=_coverage(found, tables))


def _makers(ranks: Sequence[Rank], tables: RecordedTables | None, rates: Rates,
            asked: Asked | None) -> Iterator[ShareMaker]:
    if tables is None:
        yield from (ShareMaker(rank=rank, ops=None, windows=None, rates=rates, asked=asked) for rank in ranks)
        return
    ops, steps = ({int(key[0]): rows for key, rows in table.partition_by("rank", as_dict=True).items()}
                  for table in (tables.ops, tables.steps))
    for rank in ranks:
        timed = steps_of_timeline(steps[rank.number], rank) if rank.number in steps else tables.steps.clear()
        yield ShareMaker(rank=rank, ops=ops.get(rank.number), rates=rates, asked=asked,
                         windows=list(timed.select("start_ns", "end_ns", "step").iter_rows()))


def _coverage(found: Sequence[RankShare], tables: RecordedTables | None) -> Coverage | None:
    if tables is None or tables.ops.is_empty() or not any(one.num_rows for one in found):
        return None
    flops, calls = (float(tables.ops[name].sum()) for name in ("flops", "calls"))
    return Coverage(flops=sum(one.flops for one in found), counted_flops=flops,
                    calls=sum(one.calls for one in found), counted_calls=calls)
