"""Analysis of waiting in a run of many ranks: a first cut over all of them, then a replay of those that matter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import polars as pl

from distprof.arrays import Floats
from distprof.contract.collective_ops import text_of
from distprof.contract.problems import FirstStepLeftOut, Remark
from distprof.contract.tables import STEPS
from distprof.errors import DataError
from distprof.freed_memory import give_back
from distprof.merge.activity.activities import Activities
from distprof.merge.activity.breakdown import SCHEMA
from distprof.merge.activity.rank_slices import step_windows
from distprof.merge.blame.analysis import VAGUE, Analysis, analyse, by_timers, judged
from distprof.merge.blame.culprits import Blind, Cause, Culprit, by_host
from distprof.merge.blame.excess import Excess, ShiftingLateness, excess_of
from distprof.merge.blame.first_cut import FirstCut, Peers, first_cut
from distprof.merge.blame.processors import Processors
from distprof.merge.blame.slow_groups import SlowGroup, slow_groups_of
from distprof.merge.clock.choose import hosts_of
from distprof.merge.cost.joined_run import JoinedRun
from distprof.merge.cost.measures import measured_collectives
from distprof.merge.match.matched_run import match_run
from distprof.merge.match.matching import match
from distprof.merge.match.rank_rows import recorded_rows
from distprof.merge.program.job import NEEDED, Job, job_of
from distprof.merge.run.tables import read_table

STANDS_STILL = 0.05
"""If threads are known to wait for less than this fraction of the time of calls, these do not tell who waits for
whom."""
PEERS = 2
"""Number of peers whose timelines a culprit is compared with."""
MOST = 6
"""At most this many culprits are examined again with timelines, those that cost most."""


def analysis_of_many(many: JoinedRun) -> Analysis:
    """Analyses what waiting cost, and who caused it."""
    remarks: list[Remark] = []
    if many.first_left_out is not None:
        remarks.append(FirstStepLeftOut(step=many.first_left_out))
    steps = [*(() if many.run.light_ranks else many.traced), *many.arrivals]
    hosts = {rank.number: rank.host for rank in many.run.ranks}
    windows = many.steps.filter(pl.col("step").is_in(steps))
    processors = Processors.of(windows, hosts)
    blind, found, shifting = _blind(many, steps), list[Culprit](), None
    if blind is None:
        cut = first_cut(many, steps)
        give_back()  # the replay needs it next
        found, blind, shifting = _culprits(many, cut, windows, processors)
        give_back()
    return Analysis(breakdown=breakdown_of(many), culprits=by_host(found, hosts), blind=blind,
                    crowded=processors.crowded(), shifting=shifting, steps=list(many.shown), remarks=remarks,
                    problems=(), slow_groups=_slow_groups(many, hosts))


def _blind(many: JoinedRun, steps: Sequence[int]) -> Blind | None:
    if len(many.run.ranks) < 2:
        return "others missing" if many.run.missing else "one rank"
    in_ns = int(many.calls.in_ns.sum())
    if len(many.calls.ranks) < 2 or not in_ns:
        return "no collective"
    # with a device, the thread goes on at once, and a stream waits
    if int(many.calls.waited_ns.sum()) < STANDS_STILL * in_ns:
        return "no wait"
    return None if steps else "uneven"


def _culprits(many: JoinedRun, cut: FirstCut, windows: pl.DataFrame, processors: Processors) -> tuple[
        list[Culprit], Blind | None, ShiftingLateness | None]:
    """Finds culprits by replaying the chosen ranks, compared with all of their peers."""
    if not any(len(one.ranks) > 1 for one in cut.peers):
        return [], "no peers", None
    if not cut.chosen:
        return [], None, None
    activities = Activities()
    job = _job(many, cut, activities)
    groups = [one for peers in cut.peers if (one := excess_of_work(job, peers, cut.steps, activities)) is not None]
    found, blind, shifting = judged(
        job, windows, activities, steps=cut.steps, traced=(), coordinates={}, groups=groups, processors=processors,
        clock_ns=many.clock.pair_uncertainty_ns())
    found = looked_again(many, [_of_all(one, job, many) for one in found], cut)
    return by_timers(many.run, found, many.steps, cut.peers_of), blind, shifting


def _job(many: JoinedRun, cut: FirstCut, activities: Activities) -> Job:
    is_counted = pl.col("step").is_in(list(cut.steps))
    found = recorded_rows(many.run.of_ranks(set(cut.chosen)), cut.steps)
    rows = match(found.rows, ended=found.ended, world_size=many.run.world_size)
    del found  # rows of many ranks are large, and each stage copies them
    rows = measured_collectives(rows, many.clock, hosts_of(many.run)).select(*NEEDED, "wait_start_ns", "wait_end_ns")
    steps = many.steps.filter(is_counted, pl.col("rank").is_in(list(cut.chosen)))
    return job_of(rows, {}, step_windows(many.clock, steps, ()), activities)


def _of_all(one: Culprit, job: Job, many: JoinedRun) -> Culprit:
    """Extends the delayed ranks to all ranks of the run if all replayed ranks are delayed."""
    every = [rank.number for rank in many.run.ranks]
    return replace(one, delayed=every) if len(one.delayed) == len(job.ranks) else one


@dataclass(frozen=True, kw_only=True)
class ExcessOfMany(Excess):
    """Work of peers that are replayed, also compared with all other peers: the former show where a rank works longer,
    all of them by how much."""

    whole: Floats
    """Work of all peers; shape (peers, steps), those that are replayed first."""

    @cached_property
    def totals(self) -> Floats:
        """All kinds have the same total: nothing tells them apart where no timeline is read."""
        return np.repeat(self.whole[:, :, None], len(self.kinds), axis=2)


def excess_of_work(job: Job, peers: Peers, steps: Sequence[int], activities: Activities) -> ExcessOfMany | None:
    """Compares all peers by how long each worked per step; None if fewer than two of them are replayed.

    Args:
        job: What the replayed ranks did.
        peers: A set of peers, of which some are in the job.
        steps: Steps that count.
        activities: Names of what ranks did.
    """
    replayed = np.isin(peers.ranks, job.ranks)
    if replayed.sum() < 2:
        return None
    found = excess_of(job, np.searchsorted(job.ranks, peers.ranks[replayed]), steps, activities.known, ())
    order = np.argsort(~replayed, kind="stable")
    return ExcessOfMany(**{field.name: getattr(found, field.name) for field in fields(found)},
                        whole=peers.work[order])


def _slow_groups(many: JoinedRun, hosts: Mapping[int, str]) -> list[SlowGroup]:
    steps = many.steps.filter(pl.col("step").is_in(list(many.shown)))
    if steps.is_empty():
        return []
    calls, meetings = many.calls, many.calls.meetings
    waited, held = (np.bincount(calls.cell_meeting, ns, len(meetings)) for ns in (calls.waited_ns, calls.in_ns))
    of_meetings = pl.DataFrame({"is_message": [one.is_message for one in meetings], "group_ranks": [
        text_of(one.group.ranks) for one in meetings], "ratio": np.minimum(waited / np.maximum(held, 1), 1.0)},
        schema_overrides={"group_ranks": pl.String, "is_message": pl.Boolean}).with_row_index("meeting")
    exposed = dict(of_meetings.group_by("group_ranks").agg(pl.col("ratio").max()).iter_rows())
    moved = many.measured.calls.lazy().filter(
        pl.col("step").is_in(list(many.shown)), pl.col("transfer_ns").is_not_null()).group_by(
        "step", "meeting", "op", "num_ranks").agg(
        ns=(pl.col("transfer_ns") / pl.col("num_ranks")).sum(), calls=pl.len(), num_bytes=pl.col("size_bytes").sum(),
    ).join(of_meetings.lazy().cast({"meeting": pl.Int32}), on="meeting").filter(~pl.col("is_message")).with_columns(
        op=pl.col("op").replace_strict(dict(enumerate(calls.texts["op"])), return_dtype=pl.String)).collect()
    step_ns: Any = steps["duration_ns"].mean()
    return slow_groups_of(moved, hosts, float(step_ns), exposed)


def breakdown_of(many: JoinedRun) -> pl.DataFrame:
    """Returns the columns of `step_breakdown` for the steps shown; null where only timelines tell.

    How long a rank waited for communication is known for each step, and how much of that was before all ranks had come.
    """
    joined = many.calls
    blocked = pl.DataFrame({"rank": joined.ranks[joined.waits["rank"]], "step": joined.waits["step"],
                            "blocked_ns": joined.waits["blocked_ns"]}).cast({"step": pl.Int64})
    windows = many.steps.filter(pl.col("step").is_in(list(many.shown))).select("rank", "step", "duration_ns")
    each = windows.join(blocked, on=("rank", "step"), how="left").join(
        many.measured.shares, on=("rank", "step"), how="left")
    met = each.with_columns(pl.col("blocked_ns").clip(0, pl.col("duration_ns")))
    waiting, messages = ((pl.col("blocked_ns") * pl.col(name)).cast(pl.Int64)
                         for name in ("waiting_ratio", "message_ratio"))
    found = met.with_columns(waiting.alias("waiting_ns"), messages.alias("message_waiting_ns")).with_columns(
        (pl.col("blocked_ns") - pl.col("waiting_ns")).alias("moving_ns"))
    missing = [pl.lit(None, kind).alias(name) for name, kind in SCHEMA.items() if name not in found.columns]
    return found.with_columns(missing).select(list(SCHEMA)).sort("rank", "step")


def looked_again(many: JoinedRun, culprits: Sequence[Culprit], cut: FirstCut) -> list[Culprit]:
    """Names causes from timelines, where the folders of a culprit and of peers are available.

    Whether a rank is late, by how much and how surely, remains what the steps of all ranks tell.
    """
    folders, found = {rank.number: rank for rank in many.run.ranks}, list(culprits)
    for index in [index for index, one in enumerate(found) if one.certain and _is_vague(one)][:MOST]:
        one = found[index]
        here = islice((rank for rank in (one.rank, *cut.near(one.rank)) if folders[rank].has_folder), 1 + PEERS)
        if one.rank in (ranks := set(here)) and len(ranks) > 1:
            causes = _causes(many, ranks).get(one.rank)
            if causes is not None:
                found[index] = replace(one, causes=_with_gains(causes, one))
    return found


def _is_vague(one: Culprit) -> bool:
    return not one.causes or one.causes[0].kind in VAGUE


def _causes(many: JoinedRun, ranks: set[int]) -> Mapping[int, Sequence[Cause]]:
    """Returns what these ranks spend more time on than each other, from their tables; empty if the tables are
    damaged."""
    run = many.run.of_tables(ranks)
    try:
        matched = match_run(run)
        if matched.rows.is_empty():
            return {}
        rows = measured_collectives(matched.rows, many.clock, hosts_of(run))
        seen = analyse(run, many.clock, rows, read_table(run, STEPS).rows)
    except DataError:
        return {}
    return {one.rank: one.causes for one in seen.culprits if not _is_vague(one)}


def _with_gains(causes: Sequence[Cause], one: Culprit) -> list[Cause]:
    """Scales the causes to the gain of the job: a few ranks show only what a cause gains the rank."""
    most = max(one.gain_ns, one.last_gain_ns)
    return [replace(cause, gain_ns=most * cause.gain_ns / max(causes[0].gain_ns, 1)) for cause in causes]
