"""Stragglers: pieces of work that take longer than those of the peers of their rank, in that step and in general."""

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
"""Standard deviations, estimated from the median one, beyond which a piece is longer than usual."""
FEWEST = 3
"""Steps from which on it shows what is usual."""
OF_USUAL = 0.2
"""Part of the usual time by which a straggler exceeds it at least."""
OF_STEP = 0.005
"""Part of a step by which a piece exceeds the usual time at least, unless it does so on its rank in most steps."""
OF_MEDIAN = 1.2533
"""Standard error of the median of normal values over that of their mean."""
NORMAL = 1.4826
"""Standard deviation of normal values over their median deviation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stragglers:
    """Pieces of work that take longer than they should."""

    less_ns: Floats
    """Of each piece of the job, how much less it takes if it is no straggler."""
    left_ns: float
    """By how much a rank then still works longer per step than its peers, the one that does so most: what is not told
    from chance."""
    shifting_ns: float
    """By how much the rank that works longest in a step then still exceeds its peers, mean over steps: another one from
    step to step is no straggler."""


def stragglers(program: RunProgram, job: Job, steps: Sequence[int],
               coordinates: Mapping[int, Mapping[str, int]]) -> Stragglers:
    """Finds the stragglers of a job.

    A piece is the work of one activity at one place among the calls of a step. The longest of a rank is compared with
    the longest of the median peer, its second longest with their second longest, and so on, so that the rank keeps as
    much jitter as its peers have; the only rank of its kind is compared with its median step. A straggler is longer by
    more than pieces scatter, and longer than that of the median peer in the same step. It then takes what these two
    take, whichever is longer. Where the median step of a rank is longer than that of its peers by more than medians
    scatter, all its pieces there are stragglers. Steps with a timeline and steps without are compared with their like.

    Args:
        program: What ranks did.
        job: Its graph.
        steps: Those that are looked at.
        coordinates: Of ranks in the device mesh, where they are known.

    Raises:
        DataError: There are too few steps to tell what is usual.
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
    """Pieces of peers, how much less each takes, and what each peer then still does in these steps; shape (peers,
    steps).

    Work that may be waiting takes what it took.
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
    """By how much each peer exceeds the others; 0 without any."""
    found: Floats = np.nan_to_num(work - median_of_others(work)).clip(0)
    return found


def too_much(work: Floats, least_ns: float) -> Floats:
    """By how much work of peers is too long, where it is a straggler; shape (ranks, steps, cells), as `work`.

    Args:
        work: ns.
        least_ns: What is less does not count, unless it is so on its rank in most steps.
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
    """The longest step of the median peer in place of the longest one, and so on: jitter that peers have too stays."""
    if len(work) < 2:
        return np.broadcast_to(own[:, None], work.shape)
    order = np.argsort(work, axis=1, kind="stable")
    found = np.empty(work.shape)
    np.put_along_axis(found, order, median_of_others(np.take_along_axis(work, order, axis=1)), axis=1)
    return found
