"""Writes the merged trace of all ranks in the requested format.

Each rank is read twice: the survey finds what must be known about all ranks before the first byte is written, then its
events are written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from distprof.contract.problems import Problem, TraceDamaged
from distprof.freed_memory import giving_back
from distprof.merge.chrome.formats import FORMATS, Output
from distprof.merge.chrome.options import MergeOptions
from distprof.merge.chrome.rank_events import RankCounts
from distprof.merge.chrome.rank_plan import RankPlan
from distprof.merge.chrome.rank_plans import plan_ranks
from distprof.merge.chrome.rank_surveys import Progress, RankSurvey, RankSurveys
from distprof.merge.chrome.rank_writer import write_rank
from distprof.merge.chrome.work_folder import remove_work_folder
from distprof.merge.clock.model import Clock
from distprof.merge.run.run_model import Run
from distprof.merge.run.timelines import losses_of

if TYPE_CHECKING:
    import polars as pl

    from distprof.merge.cost.measured_parts import CollectivePieces
    from distprof.storage.writing.by_workers import ByWorkers


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedTrace:
    """What went into the file."""

    path: Path
    counts: Sequence[RankCounts]
    """Counts of each rank; empty if the traces were packed unchanged."""
    num_ranks: int
    num_bytes: int
    remarks: list[str]
    """Sentences on what the options left out."""
    problems: list[Problem]
    """Damage found by the second pass that the first pass had skimmed over."""

    @property
    def num_slices(self) -> int:
        """Number of slices of all ranks."""
        return self.total("num_slices")

    def total(self, count: str) -> int:
        """Returns the sum over ranks of a count of `RankCounts`."""
        return sum(getattr(one, count) for one in self.counts)


def merge_traces(run: Run, clock: Clock, read: list[RankSurvey], reading: RankSurveys, folder: Path,
                 options: MergeOptions, progress: Progress = lambda _: None, *,
                 collectives: CollectivePieces | None = None, steps: pl.DataFrame | None = None,
                 allocations: pl.DataFrame | None = None,
                 chain: pl.DataFrame | None = None, by_workers: ByWorkers | None = None) -> MergedTrace:
    """Writes the merged trace of ranks, and their events as tables.

    Args:
        run: The run whose ranks are merged.
        clock: Clock of the run.
        read: Ranks with their surveys; not empty.
        reading: The surveys, whose workers do the second pass.
        folder: Where the files go.
        options: What goes in and how.
        progress: Called with the share of the work that is done, from 0 to 1.
        collectives: Collectives of the run, to be drawn.
        steps: `STEPS` of the ranks, if they recorded some.
        allocations: `allocations_of` of the ranks, to be drawn.
        chain: Critical paths of the steps, to be drawn.
        by_workers: What workers write elsewhere themselves; None: everything is written to the folder.

    Raises:
        UsageError: The options ask for steps that do not exist, or for a size in which nothing fits.
    """
    plans = plan_ranks(run, clock, read, options, collectives, steps, allocations, chain)
    form = FORMATS[options.format]
    outputs: list[Output] = [new(folder, run, clock, plans) for new in form.outputs(by_workers)]
    joined, objects = (None, None) if by_workers is None else (by_workers.joined, by_workers.objects)
    if options.operators:
        from distprof.merge.chrome.operators_table import OperatorTables

        outputs.append(OperatorTables(folder, run, clock, plans, objects))
    for output in outputs:
        output.begin()
    # not a list: a finished writer that is kept would hold the memory of its rank
    work = ((f"write rank {plan.rank}", (replace(plans.whole(plan), survey=reading.sent(plan.survey)), [
        writer for output in outputs if (writer := output.rank_writer(plan)) is not None])) for plan in plans.ranks)
    counts = list[RankCounts]()
    wants_spares = None if joined is None else joined.wants_begin
    for plan, one in giving_back(zip(plans.ranks, reading.in_order(write_rank, work, wants_spares), strict=True)):
        for output in outputs:
            output.add(plan, one)
        counts.append(replace(one, metadata={}, parts=None, objects={}))  # the outputs have taken what they need
        progress(0.3 + 0.7 * len(counts) / len(plans.ranks))
    for output in outputs:
        output.end(counts)
    remove_work_folder(folder)
    path = folder / form.files[0]
    return MergedTrace(path=path, counts=counts if form.chooses_events else (),
                       num_bytes=path.stat().st_size if joined is None else joined.num_bytes,
                       num_ranks=sum(not one.lost for one in counts), remarks=plans.remarks,
                       problems=list(_found_damaged(plans.ranks, counts)))


def _found_damaged(plans: Sequence[RankPlan], counts: Sequence[RankCounts]) -> Iterator[Problem]:
    for plan, one in zip(plans, counts, strict=True):
        if one.lost:
            yield TraceDamaged(rank=plan.rank, file=plan.trace.name, what="all", detail=one.lost)
            continue
        if one.losses.damaged_events > plan.survey.losses.damaged_events:  # the survey skims
            known = list(losses_of(plan.rank, plan.trace, plan.survey.losses, plan.survey.num_events))
            yield from (found for found in losses_of(plan.rank, plan.trace, one.losses, one.num_read)
                        if found not in known)
