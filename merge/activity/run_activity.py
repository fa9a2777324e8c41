"""What all ranks of a run were doing, from their timelines, which are read one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from distprof.contract.problems import Unreadable
from distprof.contract.tables import EVENTS, LINES
from distprof.merge.activity.activities import Activities, Activity
from distprof.merge.activity.device.commands import commands_of
from distprof.merge.activity.device.rank_device import DeviceSteps, OnHost, device_steps
from distprof.merge.activity.intervals import Intervals
from distprof.merge.activity.markers import STEP
from distprof.merge.activity.rank_activity import RankActivity, RankCollectives, host_lane, rank_activity
from distprof.merge.activity.rank_slices import slices_of, steps_drawn
from distprof.merge.clock.model import Clock, RankClock
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.run.tables import rank_table
from distprof.merge.run.timelines import for_each_rank

AT_ONCE = 2
"""Number of ranks that are read at a time: their slices are in memory together."""
Calls = Callable[[int], tuple[RankCollectives | None, Intervals | None]]
"""Returns the collectives of a rank, and its waits if they were recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunActivity:
    """What ranks did, for each rank whose timeline could be read."""

    ranks: Mapping[int, Rank]
    did: Mapping[int, RankActivity]
    """Only ranks that have collectives."""
    activities: Activities
    devices: DeviceSteps
    """What devices did in steps with a timeline, with or without collectives."""
    steps: Sequence[pl.DataFrame]
    """`steps_drawn` of traces of other programs."""
    problems: Sequence[Unreadable]
    """Damaged tables; their ranks are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """What a timeline shows about its rank."""

    did: RankActivity | None
    known: Sequence[Activity]
    """Activities by label of this rank."""
    device: DeviceSteps | None
    steps: pl.DataFrame | None


def has_timeline(rank: Rank) -> bool:
    """Returns True if the rank has slices that show what it was doing, provided that they can be read."""
    return rank.trace is not None if rank.recorded is None else rank.has(EVENTS)


def run_activity(run: Run, clock: Clock, calls: Calls, windows: pl.DataFrame | None) -> RunActivity:
    """Reads the timelines of all ranks, each in a worker.

    Args:
        run: The recorded run.
        clock: Its clock.
        calls: Returns the collectives and waits of a rank.
        windows: Recorded steps, on the common clock; None if steps are taken from the traces.
    """
    ranks = [rank for rank in run.ranks if has_timeline(rank)]
    waits_drawn = run.kind == "distprof"
    each = list(for_each_rank("activity", _shown, ranks, lambda rank: (
        clock.line(rank.number), *calls(rank.number), waits_drawn,
        None if windows is None else windows.filter(pl.col("rank") == rank.number)), threads=AT_ONCE))
    activities, did = Activities(), dict[int, RankActivity]()
    known = [(rank, one) for rank, one in zip(ranks, each, strict=True) if isinstance(one, _Shown)]
    for rank, one in known:
        if one.did is not None:
            did[rank.number] = _numbered(one.did, one.known, activities)
    return RunActivity(
        ranks={rank.number: rank for rank, _ in known}, did=did, activities=activities,
        devices=DeviceSteps.joined([one.device for _, one in known if one.device is not None]),
        steps=[one.steps for _, one in known if one.steps is not None],
        problems=[one for one in each if isinstance(one, Unreadable)])


def _shown(rank: Rank, line: RankClock, calls: RankCollectives | None, recorded: Intervals | None,
           waits_drawn: bool, windows: pl.DataFrame | None) -> (  # noqa: FBT001 (it is mapped)
               _Shown | Unreadable | None):
    events = slices_of(rank, line)
    if not isinstance(events, pl.DataFrame):
        return events
    activities = Activities()
    did = None if calls is None or events.is_empty() else rank_activity(
        events, calls, activities, waits_drawn=waits_drawn, recorded=recorded)
    drawn = steps_drawn(rank.number, events) if rank.recorded is None and len(events) else None
    steps = drawn if windows is None else windows
    is_marked = pl.lit(drawn is None or bool(events["name"].str.starts_with(STEP).any()))
    device = None if steps is None else _device(
        rank, events, steps.select("step", "start_ns", "end_ns", is_marked=is_marked),
        _on_host(rank, line, calls, did, activities))
    return _Shown(did=None if did is None else replace(did, host_lane=None), known=activities.known, steps=drawn,
                  device=device)


def _device(rank: Rank, events: pl.DataFrame, windows: pl.DataFrame, host: OnHost) -> DeviceSteps | None:
    commands = commands_of(events)
    if commands is None or windows.is_empty():
        return None
    if host.lane is None:
        activities = Activities()
        host = replace(host, lane=host_lane(events, activities), known=activities.known)
    return device_steps(rank.number, commands, windows, host)


def _on_host(rank: Rank, line: RankClock, calls: RankCollectives | None, did: RankActivity | None,
             activities: Activities) -> OnHost:
    """Returns what the host did; without a lane if that is not known yet."""
    host = OnHost(lane=None if did is None else did.host_lane, known=activities.known, samples=samples_of(rank, line))
    return host if calls is None else replace(host, waits=calls.waiting, messages=calls.messages.waiting)


def samples_of(rank: Rank, line: RankClock) -> pl.DataFrame | None:
    """Returns the samples of the rank's thread, on the common clock."""
    found = rank_table(rank, LINES) if rank.recorded is not None and rank.has(LINES) else None
    if found is None:
        return None
    return found.select(pl.Series("at_ns", line.to_common(found["at_ns"].to_numpy())),
                        pl.col("file", "function").cast(pl.String), "line")


def _numbered(did: RankActivity, known: Sequence[Activity], activities: Activities) -> RankActivity:
    """Replaces labels by the numbers of activities in the whole run."""
    numbers = np.array([activities.number(one) for one in known], np.int64)
    return replace(did, lane=replace(did.lane, labels=numbers[did.lane.labels]))
