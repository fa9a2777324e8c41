"""A made-up job as its watcher sees it, and whether what the watcher says is true."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from distprof.contract.watch_state import WatchFinding
from distprof.merge.watch.job_watch import JobWatch

from .job import Job, S
from .pieces import BEGAN_NS, Ranks
from .play import play

BLAMES = ("slow_rank", "slow_host", "intermittent", "data_stall")
QUIET = ("pauses",)


@dataclass(slots=True, kw_only=True)
class Watched:
    """What was said, and when first."""

    job: Job
    findings: list[WatchFinding]
    first: dict[str, tuple[float, WatchFinding]] = field(default_factory=dict)
    """By id: time since the begin of the job, and the finding as it was told."""
    watch: JobWatch
    step_ends_ns: list[float]


def watch_live(job: Job, every_s: float = 6.0) -> Watched:
    """The findings of a job that is looked at again and again while it runs."""
    played = play(job)
    ranks, watch = Ranks(played), JobWatch(job.hosts)
    found = Watched(job=job, findings=[], watch=watch, step_ends_ns=played.end_ns.max(axis=1).tolist())
    now = 0.0
    while now < ranks.end_ns:
        now = min(now + every_s * S, ranks.end_ns)
        for rank in range(job.world):
            watch.add(rank, ranks.new(rank, now))
        if job.stops is not None:  # that a rank is silent is seen by who looks again
            watch.state(int(BEGAN_NS + now), run_id="x", running=True)
        for one in watch.findings():
            found.first.setdefault(one.id, (now, one))
    found.findings = watch.findings()
    return found


@dataclass(slots=True, kw_only=True)
class Judged:
    """Of a job with one slow rank."""

    late_s: float | None
    """From the onset until it was named; None: never."""
    in_time: bool
    """Within 60 s or 100 steps, what is longer."""
    rank_right: bool
    onset_error: float
    """In steps; at last."""
    false: list[str]
    """Kinds of findings about something else."""
    grew: float
    """The part of a step by which the trouble made steps longer: a stage of a pipeline may only wait less."""


def judged(seen: Watched, rank: int, onset: int) -> Judged:
    """The finding that names the trouble, if one does."""
    begin = seen.step_ends_ns[max(onset - 1, 0)]
    limit = max(60 * S, seen.step_ends_ns[min(onset + 100, len(seen.step_ends_ns) - 1)] - begin)
    near = max(20 * S / seen.job.step_ns, 100)
    grew = grown(seen, onset)
    about = [one for one in seen.findings
             if one.kind in (*BLAMES, "regression") and abs(one.onset_step - onset) <= 2 * near]
    best = next((one for one in about if rank in one.ranks), about[0] if about else None)
    false = [one.kind for one in seen.findings if one is not best and one.kind not in QUIET]
    if best is None:
        return Judged(late_s=None, in_time=False, rank_right=False, onset_error=np.nan, false=false,
                      grew=grew)
    told = seen.first[best.id][0] - begin
    return Judged(late_s=told / S, in_time=told <= limit, rank_right=best.ranks == [rank],
                  onset_error=best.onset_step - onset, false=false, grew=grew)


def grown(seen: Watched, onset: int) -> float:
    """By what part steps are longer from there on than in the same job without troubles."""
    ends = np.array(seen.step_ends_ns)
    without = play(replace(seen.job, troubles=())).end_ns.max(axis=1)
    before = without[onset - 1] if onset else 0.0
    return float((ends[-1] - without[-1]) / (without[-1] - before))
