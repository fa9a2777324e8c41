"""Analysis of waiting in a run: what each step was spent on, and which ranks made others wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from distprof.contract.problems import FirstStepLeftOut, Remark
from distprof.merge.blame.activities import Activities, Activity, ActivityLane
from distprof.merge.blame.blame import Blame
from distprof.merge.blame.breakdown import step_breakdown
from distprof.merge.blame.culprits import OF_MODULES, Culprit, Explanation, culprits, explained
from distprof.merge.blame.rank_activity import RankActivity, rank_activity
from distprof.merge.blame.rank_slices import slices_of_rank, step_windows
from distprof.merge.blame.waiting import RankCollectives, collectives_by_rank, matter, meetings, waiting_costs
from distprof.merge.clock.model import Clock
from distprof.merge.run.run_model import Run

SETTLES = 3
"""From this many traced steps on the first is left out: the profiler warms up in it, on each rank in its own time."""
MANY_SAMPLES = 1.2
"""From this ratio to the median rank on, the size of the batch is the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """What waiting cost, and who caused it."""

    breakdown: pl.DataFrame
    """A row per rank and step: see `step_breakdown`."""
    culprits: list[Culprit]
    """Ranks by what they cost the others, the largest first, whether certain or not."""
    steps: list[int]
    """Steps that were looked at."""
    remarks: list[Remark]


def analyse(run: Run, clock: Clock, rows: pl.DataFrame, steps: pl.DataFrame | None) -> Analysis:
    """Finds the ranks that made others wait.

    Args:
        run: What was recorded.
        clock: Of the run.
        rows: `MERGED_COLLECTIVES` of it.
        steps: Its `STEPS`; None for traces of other programs.
    """
    timelines = {rank.number: events for rank in run.ranks if (events := slices_of_rank(rank, clock)) is not None}
    windows = step_windows(clock, steps, timelines)
    counted = sorted(set(windows["step"].to_list()) or set(rows["step"].drop_nulls().to_list()))
    remarks: list[Remark] = []
    if len(counted) >= SETTLES:
        remarks.append(FirstStepLeftOut(step=counted[0]))
        counted = counted[1:]
    windows = windows.filter(pl.col("step").is_in(counted))
    activities = Activities()
    calls = collectives_by_rank(rows)
    did = {rank: rank_activity(events, calls[rank], activities, waits_drawn=run.kind == "distprof")
           for rank, events in timelines.items() if rank in calls and len(events)}
    breakdown = step_breakdown(windows, calls, did, activities)
    step_ns = dict(breakdown.group_by("rank").agg(pl.col("duration_ns").mean()).iter_rows())
    begins = {(rank, step): start for rank, step, start in windows.select("rank", "step", "start_ns").iter_rows()}
    found, by_activity = weigh(rows, calls, did, activities, steps=counted, step_ns=step_ns, begins=begins,
                               ranks=sorted({rank.number for rank in run.ranks} | set(calls)))
    return Analysis(breakdown=breakdown, steps=counted, remarks=remarks,
                    culprits=explain(found, by_activity, did, windows, activities, num_steps=len(counted)))


def weigh(rows: pl.DataFrame, calls: Mapping[int, RankCollectives], did: Mapping[int, RankActivity],
          activities: Activities, *,
          ranks: Sequence[int], steps: Sequence[int], step_ns: Mapping[int, float],
          begins: Mapping[tuple[int, int], int]) -> tuple[list[Culprit], dict[int, dict[int, float]]]:
    """Adds up what each rank cost the others; see `culprits` for what it returns."""
    lanes = {rank: _lane(did.get(rank), mine, activities) for rank, mine in calls.items()}
    costs = waiting_costs(calls, {rank: one.blocked for rank, one in did.items()})
    costs = costs.where(np.isin(costs.step, steps))
    met = meetings(rows)
    worth = matter(costs, {meeting.number: len(meeting.ranks) for meeting in met})
    blame = Blame(lanes, activities, begins)
    for meeting in met:
        blame.add(meeting, look=meeting.number in worth)
    return culprits(costs, blame.shares, ranks=ranks, steps=steps, step_ns=step_ns)


def explain(found: Sequence[Culprit], by_activity: Mapping[int, Mapping[int, float]], did: Mapping[int, RankActivity],
            windows: pl.DataFrame, activities: Activities, *, num_steps: int) -> list[Culprit]:
    """Culprits with what each spent more time on than the others; `windows` has start, end and samples of steps."""
    spent = _spent(did, windows, activities, num_steps)
    samples = dict(windows.group_by("rank").agg(pl.col("samples").mean()).drop_nulls().iter_rows())
    return [replace(one, explanations=_with_batch(
        explained(one, by_activity[one.rank], activities.known, spent), one.rank, samples)) for one in found]


def _lane(did: RankActivity | None, calls: RankCollectives, activities: Activities) -> ActivityLane:
    """Activities, over them what was exposed of communication, over that the part which was waiting."""
    flight = calls.in_flight if did is None else did.blocked
    number = activities.number(Activity("communication"))
    moving = ActivityLane(starts=flight.starts, ends=flight.ends, labels=np.full(len(flight.starts), number))
    exposed = moving.under(calls.waits().within(flight))
    return exposed if did is None else did.lane.under(exposed)


def _spent(did: Mapping[int, RankActivity], windows: pl.DataFrame, activities: Activities,
           num_steps: int) -> dict[int, dict[Activity, float]]:
    """Time a step by rank and activity, exposed communication apart."""
    found: dict[int, dict[Activity, float]] = {}
    for rank, one in did.items():
        mine = windows.filter(pl.col("rank") == rank)
        times: dict[Activity, float] = {}
        lane = one.lane.outside(one.blocked)
        for start, end in mine.select("start_ns", "end_ns").iter_rows():
            for label, spent in lane.split(start, end).items():
                times[activities.known[label]] = times.get(activities.known[label], 0.0) + spent / max(num_steps, 1)
        found[rank] = times
    return found


def _with_batch(explanations: list[Explanation], rank: int, samples: Mapping[int, float]) -> list[Explanation]:
    """Names the batch as cause, where the rank has more samples and takes longer in forward or backward."""
    others = [value for other, value in samples.items() if other != rank]
    if rank not in samples or not others or not samples[rank] >= MANY_SAMPLES * float(np.median(others)):
        return explanations
    work = [one for one in explanations if one.kind in OF_MODULES]
    if not work:
        return explanations
    batch = Explanation(kind="batch", where=None, share=sum(one.share for one in work), spent_ns=samples[rank],
                        median_ns=float(np.median(others)))
    return sorted([batch, *(one for one in explanations if one not in work)], key=lambda one: -one.share)
