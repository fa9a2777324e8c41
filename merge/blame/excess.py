"""Excess: by how much a rank worked longer than its peers, step by step, by activity, and where that shifts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from distprof.arrays import Array, Flags, Floats, Integers
from distprof.merge.activity.activities import Activity
from distprof.merge.chance import median_of_others
from distprof.merge.program.job import Job
from distprof.merge.program.parts import numbered

SHOWS = 0.3
"""Part of what a rank does beyond its peers in steps without a timeline that has to show in those with one."""
MOST_CELLS = 40_000_000
"""From more on, work is not kept by its place among the calls of a step."""
DEVIATIONS = 3
"""Standard errors that an excess in steps with a timeline has to exceed, to be no chance."""
STANDS_OUT = 0.6
"""Part of what all cells at a place exceed those of peers by that one has, to be no chance either."""
ENOUGH = 5
"""Steps with a timeline from which on the median one tells."""
OF_MEDIAN = 1.4826 * 1.2533
"""Standard error of the median of normal values, by their median deviation and the square root of their number."""
WHOLE = "whole"
"""All that a rank does itself."""
FEWEST = 8
"""Steps from which on it shows whether lateness shifts."""
MATERIAL = 0.1
"""Smallest part of a step by which the latest rank is behind its peers: jitter of balanced ranks is less."""
MOST_OFTEN = 0.5
"""Largest part of the steps in which one rank is the latest, and the same above what is its share of them:"""
ABOVE_SHARE = 0.2


def divided(work: Array, traced: Flags, unknown: Flags, position: Integers) -> Array:
    """Divides unknown work among activities.

    At a place among the calls of a step, the part that the median peer does too is divided as both do it in the steps
    with a timeline, and the rest by what exceeds the peers there. Where nothing much does, the rest stays unknown: it
    was something that no timeline shows.

    Args:
        work: Of peers; shape (ranks, steps, cells).
        traced: Which steps have a timeline.
        unknown: Which cells are of unknown activities.
        position: Place among the calls, of each cell; ascending.

    Returns:
        Work of the same shape, and the same sum at each place.
    """
    if not len(position):
        return work
    new = np.diff(position, prepend=-1) != 0
    first, place = np.flatnonzero(new), np.cumsum(new) - 1
    seen = work[:, traced] * ~unknown
    mean = seen.mean(axis=1)
    usual = median_of_others(mean)
    # of two ranks, each is the median peer of the other: what one does more is none of what both do
    common, excess = np.minimum(mean, usual), np.clip(mean - usual, 0, None)
    open_work = np.add.reduceat(work[:, ~traced] * unknown, first, axis=-1)
    base = np.minimum(open_work, median_of_others(open_work)) * (np.add.reduceat(common, first, axis=-1) > 0)[:, None]
    extra = open_work - base
    least, sure = np.maximum(SHOWS * extra.mean(axis=1), 1), _beyond_chance(seen)
    # of many cells, some exceed those of peers by chance; what is late now and then is in one that stands out
    stands_out = excess >= STANDS_OUT * np.add.reduceat(excess, first, axis=-1)[:, place]
    excess = np.where((np.add.reduceat(sure, first, axis=-1) >= least)[:, place], sure, excess * stands_out)
    shows = np.add.reduceat(excess, first, axis=-1) >= least
    found = work.astype(float)
    found[:, ~traced] += (base[:, :, place] * _shares(common, first, place)[:, None]
                          + (extra * shows[:, None])[:, :, place] * _shares(excess, first, place)[:, None])
    found[:, ~traced] = np.where(unknown, (extra * ~shows[:, None])[:, :, place], found[:, ~traced])
    return found


def _beyond_chance(seen: Array) -> Floats:
    """By how much peers surely exceed the median one, in each cell: in the mean step, or in the median one, which a
    single very long step leaves as it is."""
    num_steps = seen.shape[1]
    if num_steps < 2:
        return np.zeros(seen[:, 0].shape)
    beyond = seen - median_of_others(seen)
    error = beyond.std(axis=1, ddof=1) / num_steps ** 0.5
    found = seen.mean(axis=1) - median_of_others(seen.mean(axis=1)) - DEVIATIONS * error
    if num_steps >= ENOUGH:
        median = np.median(beyond, axis=1)
        scatter = OF_MEDIAN * np.median(np.abs(beyond - median[:, None]), axis=1) / num_steps ** 0.5
        found = np.maximum(found, median - DEVIATIONS * scatter)
    sure: Floats = np.clip(found, 0, None)
    return sure


def _shares(values: Floats, first: Integers, place: Integers) -> Floats:
    """Each value over the sum of those at its place."""
    total = np.add.reduceat(values, first, axis=-1)[:, place]
    return np.divide(values, total, out=np.zeros_like(values), where=total > 0)


@dataclass(frozen=True, kw_only=True)
class Excess:
    """Work of ranks that are peers. Cells are activities at a place among the calls of a step; times in ns."""

    ranks: Integers
    """Indices of the peers."""
    steps: Integers
    """Ascending."""
    counts: Flags
    """True for the steps that count; the others only show what fixing them would do to these."""
    labels: Integers
    """Activity of each cell."""
    work: Array
    """Shape (ranks, steps, cells)."""
    position: Integers
    """Of each cell, its place among the calls of a step."""
    recorded: Array
    """`work` before that of steps without a timeline was divided among activities."""
    piece: Integers
    """Pieces of the job that these cells are made of, with the place of each in `recorded`."""
    place: Integers
    kinds: Sequence[str]
    """Kinds of activities, and `WHOLE` at the end."""
    kind_of: Integers
    """Of each cell, the index of its kind."""
    more: Excess | None = None
    """The same over more steps, which show who is late, though not what that costs."""

    @cached_property
    def mean(self) -> Any:
        """Work a step; shape (ranks, cells)."""
        return self.work[:, self.counts].mean(axis=1)

    @cached_property
    def usual(self) -> Any:
        """The same of the median peer."""
        return median_of_others(self.mean)

    @cached_property
    def totals(self) -> Array:
        """Work by kind; shape (ranks, steps that count, kinds)."""
        work = self.work[:, self.counts]
        each = [work[:, :, self.kind_of == kind].sum(axis=2) for kind in range(len(self.kinds) - 1)]
        return np.stack([*each, work.sum(axis=2)], axis=2)

    @cached_property
    def beyond(self) -> Any:
        """Work by kind beyond that of the median peer in the same step; shape as `totals`."""
        return self.totals - median_of_others(self.totals)

    @cached_property
    def to_fix(self) -> Array:
        """What a rank has to do less of each kind, in each step, to work as its peers do.

        Its longest step is compared with the longest ones of its peers, its second longest with their second longest,
        and so on: so it keeps its own jitter, and what is late once in a while is late in that step alone.
        """
        order = np.argsort(self.totals, axis=1, kind="stable")
        by_length = np.take_along_axis(self.totals, order, axis=1)
        found = np.empty_like(self.totals)
        np.put_along_axis(found, order, by_length - median_of_others(by_length), axis=1)
        return found


def excess_of(job: Job, peers: Integers, counted: Sequence[int], known: Sequence[Activity],
              traced: Sequence[int]) -> Excess:
    """Compares peers.

    Args:
        job: What ranks did.
        peers: Indices of ranks, ascending.
        counted: Steps that count.
        known: Activities by number.
        traced: Those of the steps that have a timeline.
    """
    pieces, events, steps = job.pieces, job.graph.events, np.unique(job.steps[:, 1])
    ours = np.array([one.kind != "communication" for one in known], bool)[pieces.label]
    chosen = np.flatnonzero(ours & np.isin(events.rank[pieces.event], peers) & (job.step[pieces.event] >= 0))
    event = pieces.event[chosen]
    position = job.position[event]
    num_calls = np.zeros(len(job.ranks), np.int64)
    np.maximum.at(num_calls, events.rank[event], position)
    num_cells = len(peers) * len(steps) * (int(position.max(initial=0)) + 1) * len(known)
    if np.ptp(num_calls[peers]) or num_cells > MOST_CELLS:
        position = np.zeros_like(position)
    key = position * len(known) + pieces.label[chosen]
    cells, cell = numbered(key)
    rank, step = np.searchsorted(peers, events.rank[event]), np.searchsorted(steps, job.step[event])
    place = (rank * len(steps) + step) * len(cells) + cell
    shape = (len(peers), len(steps), len(cells))
    work = np.bincount(place, pieces.ns[chosen].astype(float), int(np.prod(shape))).reshape(shape)
    labels = cells % len(known)
    names = sorted({known[label].kind for label in labels.tolist()})
    kind_of = np.array([names.index(known[label].kind) for label in labels.tolist()], np.int64)
    position, is_traced = cells // len(known), np.isin(steps, traced)
    unknown = np.array([known[label].kind == "unknown" for label in labels.tolist()], bool)
    mixed = is_traced.any() and not is_traced.all() and len(peers) > 1
    return Excess(ranks=peers, steps=steps, counts=np.isin(steps, counted), labels=labels, position=position,
                  work=divided(work, is_traced, unknown, position) if mixed else work, recorded=work, piece=chosen,
                  place=place, kinds=[*names, WHOLE], kind_of=kind_of)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftingLateness:
    """What waiting for the latest rank of each step costs, where that is another one from step to step."""

    ranks: list[int]
    """Those that are the latest in a step."""
    num_steps: int
    late_ns: float
    """By how much the latest rank of a step works longer than its peers, median of the steps."""
    step_ns: float

    @property
    def share(self) -> float:
        """Of a step."""
        return self.late_ns / self.step_ns if self.step_ns else 0.0


def shifting_lateness(groups: Sequence[Excess], ranks: Sequence[int], step_ns: float) -> ShiftingLateness | None:
    """Looks at the largest set of peers.

    Args:
        groups: By how much ranks exceed their peers.
        ranks: Numbers of the ranks of the job.
        step_ns: Mean step.

    Returns:
        None where nobody is late, or one rank is too often.
    """
    largest = max(groups, key=lambda one: len(one.ranks), default=None)
    if largest is None or int(largest.counts.sum()) < FEWEST:
        return None
    beyond = largest.beyond[:, :, -1]
    often = np.bincount(beyond.argmax(axis=0), minlength=len(beyond)) / beyond.shape[1]
    latest = np.flatnonzero(often > 0)
    if latest[-1] >= len(largest.ranks):
        return None  # not all of them are known
    found = ShiftingLateness(
        ranks=[int(ranks[rank]) for rank in largest.ranks[latest]], num_steps=beyond.shape[1],
        late_ns=float(np.median(beyond.max(axis=0))), step_ns=step_ns)
    too_often = max(MOST_OFTEN, 1 / len(beyond) + ABOVE_SHARE)
    return found if often.max() <= too_often and found.share >= MATERIAL else None
