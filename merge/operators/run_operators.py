"""Reads the operators of all ranks of a run into one table, with FLOPs and bytes if they were counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from distprof.contract.problems import Problem, Unreadable
from distprof.contract.tables import OPS, STEPS
from distprof.errors import DataError
from distprof.merge.operators.counted_work import Coverage
from distprof.merge.operators.merged_operators import merged_operators
from distprof.merge.operators.rank_share import Asked, Kept, RankShare, Rates, ShareMaker
from distprof.merge.operators.shapes import ShapeCoverage
from distprof.merge.operators.sums import AddedUp, RunSums
from distprof.merge.operators.timeline.graph_replays import Replays
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.run.tables import Loaded, read_table
from distprof.merge.run.timelines import steps_of_timeline, with_timelines

if TYPE_CHECKING:
    from distprof.merge.operators.read_operators import Beside

LEAST_COVERED = 0.5
"""Share of the counted FLOPs for which calls of the same operators must have been timed. If it is less, other operators
ran, as in compiled code, and shapes give more FLOPs than the count does."""


@dataclass(frozen=True, kw_only=True)
class RunOperators:
    """The operators of a run."""

    shares: Sequence[RankShare]
    """One for each rank with a timeline."""
    sums: RunSums
    """The requested sums; empty if all rows were requested."""
    parts: Sequence[pl.DataFrame]
    """All rows of each rank; empty if sums were requested."""
    coverage: Coverage | None
    """None if no FLOPs were counted."""
    problems: Sequence[Problem]

    @cached_property
    def rows(self) -> pl.DataFrame:
        """Rows of all ranks, if no sums were requested; see `Kept`."""
        return pl.concat(self.parts)

    @property
    def ranks(self) -> list[int]:
        """Ranks with a timeline."""
        return [one.rank for one in self.shares]

    @property
    def by_shapes(self) -> ShapeCoverage | None:
        """If no FLOPs were counted, how many follow from the shapes in the traces. None if there are no shapes."""
        told = [one.by_shapes for one in self.shares if one.by_shapes is not None]
        return ShapeCoverage.of(told) if told else None

    @property
    def num_bad(self) -> int:
        """Number of slices without a usable duration, which were left out."""
        return sum(one.num_bad for one in self.shares)

    @property
    def num_stepless(self) -> int:
        """Number of device commands that are in no step, which were left out."""
        return sum(one.num_stepless for one in self.shares)

    @property
    def stepless_ns(self) -> int:
        """Total time of these commands."""
        return sum(one.stepless_ns for one in self.shares)

    @property
    def replays(self) -> Replays:
        """Launches of graphs."""
        return Replays(launched=sum(one.replays.launched for one in self.shares),
                       found=sum(one.replays.found for one in self.shares))

    def all(self, name: str) -> set[Any]:
        """Returns the values of `steps` or `phases` of all ranks."""
        return {value for one in self.shares for value in getattr(one, name)}


def run_operators(run: Run, rates: Rates = (None, None), *,
                  num_frames: int = 0, captured: Sequence[Path] = (), merge: Path | None = None,
                  steps: Loaded | None = None, asked: Asked | None = None,
                  beside: Beside | None = None, take: Callable[[Rank, Any], None] = lambda *_: None) -> RunOperators:
    """Reads the timelines of a run, or what a merge has of them.

    Args:
        run: The run as it was opened.
        rates: Peak FLOP/s and bytes/s of each rank's device, in place of the published ones.
        num_frames: Python functions in `stack`; 0 leaves it null.
        captured: Traces in which graphs were captured, in addition to those of the run.
        merge: A merge of the run that is elsewhere.
        steps: Its `STEPS`, if they were already read.
        asked: What is needed of the rows: they are selected and summed rank by rank. None: all rows, which take
            gigabytes for a thousand ranks.
        beside: What else is done with timelines that are read, where they are read: see `read_operators`.
        take: Called with what that returned.

    Raises:
        DataError: No rank has a timeline, or a trace with captures cannot be read.
    """
    run = with_timelines(run)
    ops = None if run.kind == "traces" else read_table(run, OPS, _totals)
    steps = None if ops is None else steps or read_table(run, STEPS)
    makers = [*_makers([rank for rank in run.ranks if rank.trace is not None], ops, steps, rates, asked)]
    problems: list[Problem] = [problem for table in (ops, steps) if table is not None for problem in table.problems]
    by_shapes, found = ops is None or ops.rows.is_empty(), _Gathering(asked)
    if num_frames or captured or not merged_operators(run, merge, makers, found.take, by_shapes=by_shapes):
        from distprof.merge.operators.read_operators import read_operators  # takes a while

        found = _Gathering(asked)
        for one in read_operators(makers, by_shapes=by_shapes, num_frames=num_frames, captured=captured,
                                  beside=beside, take=take):
            if isinstance(one, Unreadable):
                problems.append(one)
            else:
                found.take(*one)
    if not found.shares:
        raise DataError(f"no timeline in {run.path}",
                        hint="record one with --steps trace=6 or memory=3" if ops is not None else None)
    problems += [problem for share in found.shares for problem in share.problems]
    coverage = _coverage(found.shares, ops)
    if coverage is not None and coverage.ratio is not None and coverage.ratio < LEAST_COVERED:
        found = _by_shapes(makers, num_frames, captured, asked) or found
    return RunOperators(shares=found.shares, sums=found.sums, parts=found.parts, problems=problems, coverage=coverage)


def _by_shapes(makers: Sequence[ShareMaker], num_frames: int, captured: Sequence[Path],
               asked: Asked | None) -> _Gathering | None:
    """Returns the operators with FLOPs from the shapes in their timelines; None if shapes give no FLOPs."""
    from distprof.merge.operators.read_operators import read_operators

    found = _Gathering(asked)
    for one in read_operators([replace(maker, is_counted=False) for maker in makers], by_shapes=True,
                              num_frames=num_frames, captured=captured):
        if not isinstance(one, Unreadable):
            found.take(*one)
    return found if any(one.by_shapes is not None and one.by_shapes.ratio for one in found.shares) else None


class _Gathering:
    """Collects ranks as they come."""

    def __init__(self, asked: Asked | None) -> None:
        self.shares, self.parts = list[RankShare](), list[pl.DataFrame]()
        self.sums = RunSums(() if asked is None else asked.keys)

    def take(self, share: RankShare, kept: Kept) -> None:
        self.shares.append(share)
        if isinstance(kept, AddedUp):
            self.sums.add(kept)
        else:
            self.parts.append(kept)


def _totals(rows: pl.DataFrame) -> pl.DataFrame:
    """Returns what is needed at once from `OPS` of all ranks; each rank's own rows are joined where it is read."""
    return rows.group_by("rank", maintain_order=True).agg(pl.col("flops", "calls").sum())


def _makers(ranks: Sequence[Rank], ops: Loaded | None, steps: Loaded | None, rates: Rates,
            asked: Asked | None) -> Iterator[ShareMaker]:
    if ops is None or steps is None:
        yield from (ShareMaker(rank=rank, is_counted=False, windows=None, rates=rates, asked=asked) for rank in ranks)
        return
    counted, timed = set(ops.rows["rank"].to_list()), steps.rows.select("rank", "pass", "start_ns", "end_ns", "step")
    of_rank = {int(key[0]): rows for key, rows in timed.partition_by("rank", as_dict=True).items()}
    for rank in ranks:
        rows = steps_of_timeline(of_rank.get(rank.number, timed.clear()), rank)
        yield ShareMaker(rank=rank, is_counted=rank.number in counted, rates=rates, asked=asked,
                         windows=list(rows.select("start_ns", "end_ns", "step").iter_rows()))


def _coverage(found: Sequence[RankShare], ops: Loaded | None) -> Coverage | None:
    if ops is None or ops.rows.is_empty() or not any(one.num_rows for one in found):
        return None
    flops, calls = (float(ops.rows[name].sum()) for name in ("flops", "calls"))
    return Coverage(flops=sum(one.flops for one in found), counted_flops=flops,
                    calls=sum(one.calls for one in found), counted_calls=calls)
