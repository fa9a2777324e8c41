"""Why a run waits: a run with its matched collectives comes in, the split of its steps and the culprits go out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from distprof.contract import EVENTS, STEPS
from distprof.merge.comms.activities import Doing, doing, relevant
from distprof.merge.comms.blame import Blame, costs_of, matter, meetings
from distprof.merge.comms.culprits import OF_MODULES, Culprit, Explanation, culprits, explained
from distprof.merge.comms.lane import Activities, Activity, Lane
from distprof.merge.comms.waits import Calls, calls_of_ranks
from distprof.merge.run import Run
from distprof.merge.tables import UNREADABLE, load, on_common_clock

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
    remarks: list[str]


def analyse(run: Run, rows: pl.DataFrame) -> Analysis:
    """Looks for who made the others wait.

    Args:
        run: On one clock.
        rows: `MERGED_COLLECTIVES` of it.
    """
    windows = on_common_clock(run, load(run, STEPS).filter(pl.col("pass") == "trace"), ("start_ns", "end_ns"))
    steps = sorted(set(windows["step"].to_list()) or set(rows["step"].drop_nulls().to_list()))
    remarks = []
    if len(steps) >= SETTLES:
        remarks.append(f"step {steps[0]} is left out: the profiler warms up in it")
        steps = steps[1:]
    windows = windows.filter(pl.col("step").is_in(steps))
    activities = Activities()
    calls = calls_of_ranks(rows)
    did = _doing(run, calls, activities)
    breakdown = step_breakdown(windows, calls, did, activities)
    step_ns = float(breakdown["duration_ns"].mean()) if len(breakdown) else None  # type: ignore[arg-type]
    found, by_activity = weigh(rows, calls, did, activities, steps=steps, step_ns=step_ns,
                               ranks=sorted({rank.number for rank in run.ranks} | set(calls)))
    spent, samples = _spent(did, windows, activities, len(steps)), _samples(windows)
    return Analysis(breakdown=breakdown, steps=steps, remarks=remarks, culprits=[
        replace(one, explanations=_with_batch(explained(by_activity[one.rank], activities.known, spent, one.rank),
                                              one.rank, samples))
        for one in found])


def weigh(rows: pl.DataFrame, calls: Mapping[int, Calls], did: Mapping[int, Doing], activities: Activities, *,
          ranks: Sequence[int], steps: Sequence[int],
          step_ns: float | None) -> tuple[list[Culprit], dict[int, dict[int, float]]]:
    """From who was where when to what each rank cost the others; see `culprits` for what comes out."""
    lanes = {rank: _lane(did.get(rank), mine, activities) for rank, mine in calls.items()}
    costs = costs_of(calls, {rank: one.blocked for rank, one in did.items()})
    costs = costs.where(np.isin(costs.step, steps))
    met = meetings(rows)
    blame, worth = Blame(lanes, activities), matter(costs, {meeting.number: len(meeting.ranks) for meeting in met})
    for meeting in met:
        blame.add(meeting, look=meeting.number in worth)
    return culprits(costs, blame.shares, ranks=ranks, steps=steps, step_ns=step_ns)


def _doing(run: Run, calls: Mapping[int, Calls], activities: Activities) -> dict[int, Doing]:
    """What every rank that has a timeline was doing."""
    found = {}
    for rank in run.ranks:
        if rank.has(EVENTS) and rank.number in calls:
            try:
                events = relevant(pl.scan_parquet(rank.folder / EVENTS.file)).collect()
            except UNREADABLE:
                continue  # it was told when the tables were read
            numbers = pl.lit(rank.number, pl.Int64).alias("rank")
            events = on_common_clock(run, events.with_columns(numbers), ("start_ns",))
            mine = calls[rank.number]
            found[rank.number] = doing(events, mine.in_flight, mine.end_ns, activities,
                                       waits_drawn=run.kind == "distprof")
    return found


def _lane(did: Doing | None, calls: Calls, activities: Activities) -> Lane:
    """Activities, over them what was exposed of communication, over that the part which was waiting."""
    flight = calls.in_flight if did is None else did.blocked
    number = activities.number(Activity("communication"))
    moving = Lane(starts=flight.starts, ends=flight.ends, labels=np.full(len(flight.starts), number))
    exposed = moving.under(calls.waits().within(flight))
    return exposed if did is None else did.lane.under(exposed)


PARTS = ("compute", "waiting", "moving", "data", "optimizer", "host")
"""What a step is split into; they add up to it."""


def step_breakdown(windows: pl.DataFrame, calls: Mapping[int, Calls], did: Mapping[int, Doing],
                   activities: Activities) -> pl.DataFrame:
    """Splits every step of every rank that has a timeline.

    `waiting_ns` and `moving_ns` are exposed communication: before and after the last rank had come. `data_ns` is
    loading, `optimizer_ns` the optimizer, `compute_ns` operators (kernels, with a GPU) elsewhere, `host_ns` the rest.
    `overlapped_ns` is communication behind computation, and part of none of these; `overlap_ratio` its share of all
    communication, null without any.
    """
    found = [_split(row, calls[row["rank"]], did[row["rank"]], activities)
             for row in windows.select("rank", "step", "start_ns", "end_ns", "duration_ns").iter_rows(named=True)
             if row["rank"] in did]
    schema = {"rank": pl.Int64, "step": pl.Int64, "duration_ns": pl.Int64, **{f"{part}_ns": pl.Int64 for part in PARTS},
              "overlapped_ns": pl.Int64, "overlap_ratio": pl.Float64}
    return pl.DataFrame(found, schema=schema)


def _split(row: dict[str, Any], calls: Calls, did: Doing, activities: Activities) -> dict[str, Any]:
    start, end = row["start_ns"], row["end_ns"]
    waits = calls.waits().within(did.blocked)
    waiting = waits.spans(np.unique(waits.labels))
    rest = did.lane.within(did.blocked.outside(start, end))
    kinds = [one.kind for one in activities.known]
    data, optimizer = (rest.spans([number for number, kind in enumerate(kinds) if kind == name])
                       for name in ("data", "optimizer"))
    computing = did.computing - data - optimizer - did.blocked

    def inside(spans: Any) -> int:
        return int(spans.within(start, end))

    parts = {"compute": inside(computing), "waiting": inside(waiting), "data": inside(data),
             "optimizer": inside(optimizer)}
    parts["moving"] = inside(did.blocked) - parts["waiting"]
    flight = inside(calls.in_flight)
    overlapped = flight - inside(did.blocked & calls.in_flight)
    return {"rank": row["rank"], "step": row["step"], "duration_ns": row["duration_ns"],
            **{f"{part}_ns": parts[part] for part in PARTS if part != "host"},
            "host_ns": row["duration_ns"] - sum(parts.values()), "overlapped_ns": overlapped,
            "overlap_ratio": overlapped / flight if flight else None}


def _spent(did: Mapping[int, Doing], windows: pl.DataFrame, activities: Activities,
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


def _samples(windows: pl.DataFrame) -> dict[int, float]:
    means = windows.group_by("rank").agg(pl.col("samples").mean()).drop_nulls()
    return dict(means.iter_rows())


def _with_batch(explanations: list[Explanation], rank: int, samples: Mapping[int, float]) -> list[Explanation]:
    """Says that the rank has more samples, where it has and that shows in forward or backward."""
    others = [value for other, value in samples.items() if other != rank]
    if rank not in samples or not others or not samples[rank] >= MANY_SAMPLES * float(np.median(others)):
        return explanations
    work = [one for one in explanations if one.kind in OF_MODULES]
    if not work:
        return explanations
    batch = Explanation(kind="batch", where=None, share=sum(one.share for one in work), spent_ns=samples[rank],
                        median_ns=float(np.median(others)))
    return sorted([batch, *(one for one in explanations if one not in work)], key=lambda one: -one.share)
