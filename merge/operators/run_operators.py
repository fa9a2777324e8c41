"""Operators of all ranks of a run in one table, with FLOPs and bytes where they were counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from distprof.contract.problems import Unreadable
from distprof.contract.tables import OPS, STEPS
from distprof.errors import DataError
from distprof.merge.operators.counted import Coverage
from distprof.merge.operators.merged_operators import merged_operators
from distprof.merge.operators.rank_share import Asked, RankShare, Rates, ShareMaker
from distprof.merge.operators.shapes.coverage import ShapeCoverage
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.run.tables import Loaded, read_table
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
                  steps: Loaded | None = None, asked: Asked | None = None,
                  beside: Beside | None = None, take: Callable[[Rank, Any], None] = lambda *_: None) -> RunOperators:
    """Reads the timelines of a run, or what a merge has of them.

    Args:
        run: As it was opened.
        rates: Peak FLOP/s and bytes/s of each rank's device, in place of the published ones.
        num_frames: Functions of Python in `stack`; 0 leaves it null.
        merge: A merge of the run that is elsewhere.
        steps: Its `STEPS`, where they were read already.
        asked: What of the rows is needed; all of a thousand ranks take gigabytes.
        beside: What else is done with timelines that are read, where they are read: see `read_operators`.
        take: Gets what that returned.

    Raises:
        DataError: No rank has one.
    """
    run = with_timelines(run)
    ops = None if run.kind == "traces" else read_table(run, OPS)
    steps = None if ops is None else steps or read_table(run, STEPS)
    makers = [*_makers([rank for rank in run.ranks if rank.trace is not None], ops, steps, rates, asked)]
    problems = [problem for table in (ops, steps) if table is not None for problem in table.problems]
    by_shapes = ops is None or ops.rows.is_empty()
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
                        hint="--steps trace=6 records one, and so does memory=3" if ops is not None else None)
    return RunOperators(shares=found, problems=problems, coverage=_coverage(found, ops))


def _makers(ranks: Sequence[Rank], ops: Loaded | None, steps: Loaded | None, rates: Rates,
            asked: Asked | None) -> Iterator[ShareMaker]:
    if ops is None or steps is None:
        yield from (ShareMaker(rank=rank, ops=None, windows=None, rates=rates, asked=asked) for rank in ranks)
        return
    counted, stepped = ({int(key[0]): rows for key, rows in table.rows.partition_by("rank", as_dict=True).items()}
                        for table in (ops, steps))
    for rank in ranks:
        timed = steps_of_timeline(stepped[rank.number], rank) if rank.number in stepped else steps.rows.clear()
        yield ShareMaker(rank=rank, ops=counted.get(rank.number), rates=rates, asked=asked,
                         windows=list(timed.select("start_ns", "end_ns", "step").iter_rows()))


def _coverage(found: Sequence[RankShare], ops: Loaded | None) -> Coverage | None:
    if ops is None or ops.rows.is_empty() or not any(one.num_rows for one in found):
        return None
    flops, calls = (float(ops.rows[name].sum()) for name in ("flops", "calls"))
    return Coverage(flops=sum(one.flops for one in found), counted_flops=flops,
                    calls=sum(one.calls for one in found), counted_calls=calls)
