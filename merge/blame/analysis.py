"""Analysis of waiting in a run: what each step was spent on, and which ranks delay it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from distprof.arrays import Integers
from distprof.contract.passes import PASS_NAMES
from distprof.contract.problems import Remark, SeveralRanksInFile, Unreadable
from distprof.contract.tables import MODULES
from distprof.merge.activity.activities import OF_MODULES, Activities, Activity
from distprof.merge.activity.breakdown import step_breakdown
from distprof.merge.activity.device.mean_steps import counted_steps, without_kernels
from distprof.merge.activity.device.rank_device import NO_DEVICES, DeviceSteps
from distprof.merge.blame.causes import TIMED, timed_cause, with_lines
from distprof.merge.blame.culprits import AMOUNTS, Blind, Cause, Culprit, by_host, more_data
from distprof.merge.blame.excess import Excess, ShiftingLateness, excess_of, shifting_lateness
from distprof.merge.blame.peers import peers_of
from distprof.merge.blame.processors import CrowdedHost, Processors
from distprof.merge.blame.slow_groups import SlowGroup, slow_groups
from distprof.merge.blame.verdicts import UNTOLD, Verdicts
from distprof.merge.clock.model import Clock
from distprof.merge.program.job import Job
from distprof.merge.program.run_program import RunProgram, run_program
from distprof.merge.replay.graph import WAIT
from distprof.merge.run.run_model import Run
from distprof.merge.run.tables import read_table

NOT_SHOWN = "between slices"
"""Place of unknown work in a run of traces alone: where its trace shows nothing."""
VAGUE = ("unknown", "whole")
"""Kinds of causes that name no activity."""
MISLEADING = 0.5
"""If at least this fraction of the collectives contradict the clocks, it is not known whether any rank is late."""
WITH_GRAPH = (None, "no peers", "no timeline")
"""Reasons why no rank can be blamed although the job can be replayed."""
EXPOSURE = ("rank", "step", "duration_ns", "compute_ns", "waiting_ns", "moving_ns", "message_waiting_ns",
            "overlapped_ns", "communication_ns")
"""Columns that are known of steps of hosts and of devices alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """What waiting cost, and who caused it."""

    breakdown: pl.DataFrame
    """For ranks without a device, a row per rank and step: see `step_breakdown`."""
    devices: DeviceSteps = NO_DEVICES
    """The same for ranks with a device."""
    culprits: list[Culprit]
    """Late ranks by what fixing them would gain, most first, whether certain or not."""
    blind: Blind | None
    """Why delays could not be seen; None if they could."""
    crowded: list[CrowdedHost]
    """Hosts all of whose ranks waited for processors."""
    shifting: ShiftingLateness | None = None
    """A late rank that changes from step to step. None if there is none, a host is crowded, or a culprit is certain."""
    steps: list[int]
    """Steps that the breakdown covers: those with a timeline, if there are any."""
    remarks: list[Remark]
    problems: Sequence[Unreadable]
    """Damaged timelines."""
    ends_apart_ns: int | None = None
    """If ranks are assumed to leave a collective together: how far apart their ends are. None if clocks alone are
    used."""
    passes: Sequence[str] = ()
    """Passes of the steps that the times of culprits are from; empty for traces of other programs."""

    slow_groups: Sequence[SlowGroup] = ()
    """Groups that move data more slowly than equal ones; those that cost most first."""
    without_kernels: Sequence[int] = ()
    """Ranks with a device that exchange data with others although no communication kernel of theirs was recorded."""

    @property
    def exposure(self) -> pl.DataFrame:
        """`EXPOSURE` of all ranks for which it is known; for ranks with a device, of the steps of the device."""
        told = counted_steps(self.devices.steps).filter(~pl.col("rank").is_in(list(self.without_kernels)))
        return pl.concat([self.breakdown.select(EXPOSURE), told.rename({"device_step_ns": "duration_ns"}).select(
            EXPOSURE)])


def analyse(run: Run, clock: Clock, rows: pl.DataFrame, steps: pl.DataFrame | None) -> Analysis:
    """Finds the ranks that delay a job.

    Args:
        run: The recorded run.
        clock: Its clock.
        rows: Its `MERGED_COLLECTIVES`.
        steps: Its `STEPS`; None for traces of other programs.
    """
    did = run_program(run, clock, rows, steps)
    return analysis_of(run, clock, did, did.job(), steps)


def analysis_of(run: Run, clock: Clock, did: RunProgram, job: Job, steps: pl.DataFrame | None) -> Analysis:
    """Finds the ranks that delay a job, from what has already been read.

    Args:
        run: The recorded run.
        clock: Its clock.
        did: What its ranks did.
        job: The graph of that.
        steps: `STEPS`; None for traces of other programs.
    """
    windows, counted = did.windows, did.traced or did.arrivals
    devices = did.devices.of_steps(counted)
    on_device = devices.steps["rank"].unique().implode()
    breakdown = step_breakdown(windows.filter(pl.col("step").is_in(counted), ~pl.col("rank").is_in(on_device)),
                               did.calls, did.did, did.activities)
    coordinates = {rank.number: rank.coordinates for rank in run.ranks if rank.coordinates is not None}
    even = did.of_even_steps() if run.light_ranks else did
    judged_by = [*even.traced, *even.arrivals]
    processors = Processors.of(even.windows.filter(pl.col("step").is_in(judged_by)), {
        rank.number: rank.host for rank in run.ranks})
    clock_ns, by_ends = clock.pair_uncertainty_ns(), all(one.on_device for one in even.did.values())
    ends_apart_ns = clock.ends_apart_ns if by_ends and clock_ns else None
    if ends_apart_ns is not None and clock_ns is not None:
        clock_ns = min(clock_ns, ends_apart_ns)
    exact = even.replayable
    even_job = even.job() if run.light_ranks else job
    found, blind, shifting = judged(
        even_job, even.windows, even.activities, steps=exact, traced=even.traced,
        coordinates=coordinates, clock_ns=clock_ns, processors=processors,
        more=None if len(exact) == len(judged_by) else (even.whole_job(), judged_by))
    if run.kind == "distprof":
        found = with_lines(run, clock, found, even.windows.filter(pl.col("step").is_in(judged_by)), did.rows, did.did,
                           did.activities)
    else:
        found = _all_traced(found)
    if run.light_ranks:
        blind = blind if judged_by else "uneven"
    if run.kind == "distprof" and steps is not None and (run.light_ranks or not did.did):
        found = by_timers(run, found, steps)
    if blind is None and not any(one.certain for one in found) and _hides_waits(run, even):
        blind = "no timeline"
    if blind is None and not any(one.certain for one in found) and _is_wrong(clock):
        blind = "wrong clock"
    hosts = {rank.number: rank.host for rank in run.ranks}
    slow = slow_groups(even.rows, even_job, exact, hosts) if blind in WITH_GRAPH else []
    return Analysis(breakdown=breakdown, devices=devices, without_kernels=without_kernels(devices, did.rows),
                    steps=counted, remarks=list(did.remarks), culprits=by_host(found, hosts), slow_groups=slow,
                    blind=_missing(run, blind), crowded=processors.crowded(), problems=did.problems,
                    shifting=shifting, ends_apart_ns=ends_apart_ns,
                    passes=_passes(even) if run.kind == "distprof" else ())


def _all_traced(found: Sequence[Culprit]) -> list[Culprit]:
    """For a run of traces alone: unknown work lies where a trace shows nothing, not in steps without a timeline."""
    return [replace(one, causes=[replace(cause, where=NOT_SHOWN) if cause.kind == "unknown" else cause
                                 for cause in one.causes]) for one in found]


def by_timers(run: Run, found: Sequence[Culprit], steps: pl.DataFrame,
              peers_of: Callable[[int], Collection[int]] | None = None) -> list[Culprit]:
    """Replaces vague causes of certain culprits by parts of steps, or modules, if timers show them.

    Args:
        run: The recorded run.
        found: Ranks that delay the job.
        steps: `STEPS` of all ranks.
        peers_of: Returns the ranks that one is compared with, including itself; None for all ranks.
    """
    return [_timed(run, one, steps, None if peers_of is None else peers_of(one.rank))
            if one.certain and (not one.causes or one.causes[0].kind in VAGUE) else one for one in found]


def _timed(run: Run, one: Culprit, steps: pl.DataFrame, among: Collection[int] | None) -> Culprit:
    some = run if among is None else run.of_ranks(among)
    if among is not None:
        steps = steps.filter(pl.col("rank").is_in(list(among)))
    cause = timed_cause(steps, read_table(some, MODULES.only(*TIMED)).rows, one.rank,
                        max(one.gain_ns, one.last_gain_ns))
    return one if cause is None else replace(one, causes=[cause])


def _is_wrong(clock: Clock) -> bool:
    check = clock.check
    return check is not None and check.contradicts and check.violations >= MISLEADING * check.num_collectives


def _hides_waits(run: Run, did: RunProgram) -> bool:
    """Returns whether device streams wait and no timeline shows how long: a rank that is not named may still be late.

    The host sees only the end of what it communicates itself.
    """
    on_devices = run.kind == "distprof" and all(
        rank.recorded is not None and rank.recorded.device_type not in ("", "cpu") for rank in run.ranks)
    return on_devices and not did.did and not (did.rows["timed_by"] == "future").any()


def _passes(did: RunProgram) -> list[str]:
    """Returns the passes of the steps that count."""
    found = set(did.windows.filter(pl.col("step").is_in([*did.traced, *did.arrivals]))["pass"].to_list())
    return [name for name in PASS_NAMES if name in found]


def judged(job: Job, windows: pl.DataFrame, activities: Activities, *, steps: Sequence[int], traced: Sequence[int],
           coordinates: Mapping[int, Mapping[str, int]], clock_ns: float | None, processors: Processors = UNTOLD,
           more: tuple[Job, Sequence[int]] | None = None, groups: Sequence[Excess] | None = None,
           ) -> tuple[list[Culprit], Blind | None, ShiftingLateness | None]:
    """Finds the ranks that delay a job, by what fixing them would gain, or why none is seen; and a changing late rank.

    Args:
        job: What ranks did, as a graph.
        windows: Start, end and samples of the steps of ranks.
        activities: Names of what they did.
        steps: Steps that count.
        traced: Those of them that have timelines.
        coordinates: Coordinates of ranks in the device mesh, where known.
        clock_ns: Error bound of the difference between two ranks' clocks; None if they were never compared.
        processors: Run queue and CPU times of ranks, if the kernel reports them.
        more: What ranks did in more steps, and all of these steps, which show who is late, but not what that costs.
        groups: Peers and their excess, if there are more peers than the job has ranks.
    """
    groups = groups if groups is not None else [_excess(job, more, peers, steps, activities.known, traced)
              for peers in peers_of(job, steps, activities.known, coordinates)
              if len(peers) > 1 and np.isin(job.steps[:, 1], steps).any()]
    blind = _blind(job, has_peers=bool(groups), has_clock=clock_ns is not None)
    if blind is not None or clock_ns is None:
        return [], blind, None
    counted = windows.filter(pl.col("step").is_in(steps))
    amounts = [(kind, dict(counted.group_by("rank").agg(pl.col(column).mean()).drop_nulls().iter_rows()))
               for kind, column in AMOUNTS.items()]
    found = Verdicts(job, groups, activities.known, steps, clock_ns, processors).culprits()
    found = [replace(one, causes=_with_batch(one.causes, one.rank, amounts)) for one in found]
    is_told = any(one.certain for one in found) or bool(processors.crowded())
    step_ns = counted["duration_ns"].to_numpy().mean() if len(counted) else 0.0
    return found, None, None if is_told else shifting_lateness(groups, job.ranks.tolist(), float(step_ns))


def _excess(job: Job, more: tuple[Job, Sequence[int]] | None, peers: Integers, steps: Sequence[int],
            known: Sequence[Activity], traced: Sequence[int]) -> Excess:
    found = excess_of(job, peers, steps, known, traced)
    if more is None or not np.array_equal(more[0].ranks, job.ranks):
        return found
    return replace(found, more=excess_of(more[0], peers, more[1], known, traced))


def _missing(run: Run, blind: Blind | None) -> Blind | None:
    """Refines "one rank" in a job of several: the other ranks are missing, share its file, or did not communicate."""
    if blind == "one rank" and any(isinstance(one, SeveralRanksInFile) for one in run.remarks):
        return "one file"
    if blind != "one rank" or run.world_size < 2:
        return blind
    return "others missing" if run.missing else "no collective"


def _blind(job: Job, *, has_peers: bool, has_clock: bool) -> Blind | None:
    if len(job.ranks) < 2:
        return "one rank"
    if not len(job.graph.parts):
        return "no collective"
    if not (job.graph.events.kind == WAIT).any():
        return "no wait"
    if not has_clock:
        return "no clock"
    return None if has_peers else "no peers"


def _with_batch(causes: list[Cause], rank: int, amounts: Sequence[tuple[str, Mapping[int, float]]]) -> list[Cause]:
    """Names the batch as cause if the rank has more or longer samples and takes longer in modules."""
    work = [one for one in causes if one.kind in (*OF_MODULES, "whole")]
    known = {kind: each for kind, each in amounts if rank in each and len(each) > 1}
    batch = more_data({kind: each[rank] for kind, each in known.items()}, {
        kind: float(np.median([value for other, value in each.items() if other != rank]))
        for kind, each in known.items()}, work)
    if batch is None:
        return causes
    return sorted([batch, *(one for one in causes if one not in work)], key=lambda one: -one.gain_ns)
