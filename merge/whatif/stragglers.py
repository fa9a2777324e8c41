"""Stragglers: pieces of work that take longer than those of their rank's peers, in that step and usually."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from distprof.arrays import Floats, Integers
from distprof.errors import DataError
from distprof.merge.blame.candidates import MOST_MISSED
from distprof.merge.blame.excess import Excess, excess_of
from distprof.merge.blame.peers import peers_of
from distprof.merge.chance import median_of_others
from distprof.merge.program.job import Job
from distprof.merge.program.run_program import RunProgram

DEVIATIONS = 4
"""A piece is longer than usual beyond this many standard deviations, estimated from the median absolute deviation."""
FEWEST = 3
"""Fewest steps from which the usual time is estimated."""
OF_USUAL = 0.2
"""A straggler exceeds the usual time by at least this share of it."""
OF_STEP = 0.005
"""A straggler exceeds the usual time by at least this share of a step, unless its rank does so in most steps."""
OF_MEDIAN = 1.2533
"""Ratio of the standard errors of the median and the mean of normal values."""
NORMAL = 1.4826
"""Ratio of the standard deviation and the median absolute deviation of normal values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stragglers:
    """How much shorter the work of a job is without its stragglers."""

    less_ns: Floats
    """For each piece of work of the job, by how much it is shorter; 0 for pieces that are no stragglers."""
    left_ns: float
    """By how much a rank then still works longer per step than its peers, for the rank with the largest such excess: it
    may be chance."""
    shifting_ns: float
    """By how much the rank that works longest in a step then still exceeds its peers, mean over steps: it may be
    another rank in each step, which is no straggler."""


def stragglers(program: RunProgram, job: Job, steps: Sequence[int],
               coordinates: Mapping[int, Mapping[str, int]]) -> Stragglers:
    """Finds the stragglers of a job.

    A piece is the work of one activity at one place among the calls of a step. The longest piece of a rank, over steps,
    is compared with the longest of the median peer, its second longest with their second longest, and so on, so that
    the rank keeps as much jitter as its peers have; a rank without peers is compared with its median step. A straggler
    is longer than this by more than pieces scatter, and longer than the piece of the median peer in the same step. It
    is shortened to the longer of these two. If the median of a rank is longer than that of its peers by more than
    medians scatter, all longer pieces of it are stragglers. Steps with and without a timeline are compared separately.

    Args:
        program: What ranks did.
        job: The graph of the run.
        steps: Steps in which stragglers are removed.
        coordinates: Coordinates of ranks in the device mesh, if known.

    Raises:
        DataError: There are too few steps to estimate the usual time.
    """
    found, left_ns, shifting_ns = np.zeros(len(job.pieces.ns)), np.zeros(len(job.ranks)), np.zeros(len(job.ranks))
    known, events = program.activities.known, job.graph.events
    windows = job.steps[np.isin(job.steps[:, 1], steps)]
    step_ns = float(np.median(events.at_ns[windows[:, 3]] - events.at_ns[windows[:, 2]])) if len(windows) else 0.0
    groups = [sorted(alike & set(job.steps[:, 1].tolist())) for alike in (
        set(program.traced), set(program.arrivals), set(steps) - {*program.traced, *program.arrivals})]
    groups = [compared for compared in groups if len(compared) >= FEWEST and set(compared) & set(steps)]
    if not groups:
        raise DataError(f"--no-stragglers needs at least {FEWEST} steps to tell what is usual",
                        hint="--steps trace=6 records more; the first step of a pass does not count")
    for compared in groups:
        for peers in peers_of(job, compared, known, coordinates):
            one = excess_of(job, peers, compared, known, compared)
            piece, less_ns, left = _of_peers(one, job, steps, step_ns)
            found[piece] += less_ns
            left_ns[peers] += _beyond(left.sum(axis=1)) / len(steps)
            shifting_ns[peers] += _beyond(left).max(axis=0, initial=0).sum() / len(steps)
    return Stragglers(less_ns=found, left_ns=float(left_ns.max(initial=0)),
                      shifting_ns=float(shifting_ns.max(initial=0)))


def _of_peers(one: Excess, job: Job, steps: Sequence[int], step_ns: float) -> tuple[Integers, Floats, Floats]:
    """Returns pieces of peers, by how much each is shorter, and the remaining work of each peer in these steps, shape
    (peers, steps).

    Work that may contain waiting is not shortened.
    """
    less = np.zeros(one.recorded.shape)
    if one.recorded[:, one.counts].size:
        less[:, one.counts] = too_much(one.recorded[:, one.counts], OF_STEP * step_ns)
    less[:, ~np.isin(one.steps, steps)] = 0
    less[job.misses_waits[one.ranks] > MOST_MISSED] = 0
    left = (one.recorded - less)[:, one.counts & np.isin(one.steps, steps)].sum(axis=2)
    share = np.divide(less, one.recorded, out=np.zeros(less.shape), where=one.recorded > 0).reshape(-1)[one.place]
    some = np.flatnonzero(share)
    piece = one.piece[some]
    return piece, share[some] * job.pieces.ns[piece], left


def _beyond(work: Floats) -> Floats:
    """Returns by how much each peer exceeds the median of the others; 0 without others."""
    found: Floats = np.nan_to_num(work - median_of_others(work)).clip(0)
    return found


def too_much(work: Floats, least_ns: float) -> Floats:
    """Returns by how much the work of peers is too long where it is a straggler, else 0; the shape of `work`.

    Args:
        work: In ns; shape (ranks, steps, cells).
        least_ns: Smallest excess that counts, unless the rank exceeds its peers in most steps.
    """
    own = np.median(work, axis=1)
    deviation = np.median(np.abs(work - own[:, None]), axis=1)
    usual, spread = (np.fmin(values, median_of_others(values)) for values in (own, deviation))
    limit = np.maximum(DEVIATIONS * NORMAL * spread, OF_USUAL * usual)
    enough = np.where(own > usual + limit, limit, np.maximum(limit, least_ns))
    error = DEVIATIONS * NORMAL * OF_MEDIAN * np.hypot(deviation, spread) / work.shape[1] ** 0.5
    enough = np.where(own > usual + np.maximum(error, least_ns), 0, enough)
    as_peers = np.fmax(_as_peers(work, own), median_of_others(work))
    return np.where(work > as_peers + enough[:, None], work - as_peers, 0)


def _as_peers(work: Floats, own: Floats) -> Floats:
    """Replaces the longest work of each rank by the longest of the median peer, the second longest likewise, and so on
    (quantile matching), so that jitter that peers have, too, stays."""
    if len(work) < 2:
        return np.broadcast_to(own[:, None], work.shape)
    order = np.argsort(work, axis=1, kind="stable")
    found = np.empty(work.shape)
    np.put_along_axis(found, order, median_of_others(np.take_along_axis(work, order, axis=1)), axis=1)
    return found
