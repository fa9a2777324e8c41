"""Excess: how much longer than its peers a rank worked, per step and activity, and whether the late rank changes."""

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
"""Untraced excess at a place is attributed to activities if the traced excess there is at least this fraction of it."""
MOST_CELLS = 40_000_000
"""Above this number of cells, work is not distinguished by its place among the calls of a step."""
DEVIATIONS = 3
"""An excess in traced steps is not chance if it exceeds this many standard errors."""
STANDS_OUT = 0.6
"""An excess also is not chance if its cell has at least this fraction of the excess of all cells at its place."""
ENOUGH = 5
"""Number of traced steps from which on the median step is considered, too."""
OF_MEDIAN = 1.4826 * 1.2533
"""Standard error of the median of normal values, divided by (median absolute deviation / square root of their
number)."""
WHOLE = "whole"
"""Kind of work that stands for all that a rank does itself."""
FEWEST = 8
"""Number of steps needed to tell whether the late rank changes."""
MATERIAL = 0.1
"""The late rank must exceed its peers by at least this fraction of a step: balanced ranks jitter by less."""
MOST_OFTEN = 0.5
"""The late rank changes only if no rank is the latest in more than this fraction of the steps, or, if that is more, in
more than its even share of the steps plus `ABOVE_SHARE`."""
ABOVE_SHARE = 0.2
"""Fraction of the steps; see `MOST_OFTEN`."""


def divided(work: Array, traced: Flags, unknown: Flags, position: Integers) -> Array:
    """Divides unknown work among activities.

    At each place among the calls of a step, the part that the median peer does too is divided as in the traced steps,
    and the rest by how traced work exceeds that of the peers there. If little traced work does, the rest stays unknown:
    it was something that no timeline shows.

    Args:
        work: Work of the peers; shape (ranks, steps, cells).
        traced: Which steps have a timeline.
        unknown: Which cells are of unknown activities.
        position: Place of each cell among the calls of a step; ascending.

    Returns:
        Work of the same shape, with the same sum at each place.
    """
    if not len(position):
        return work
    new = np.diff(position, prepend=-1) != 0
    first, place = np.flatnonzero(new), np.cumsum(new) - 1
    seen = work[:, traced] * ~unknown
    mean = seen.mean(axis=1)
    usual = median_of_others(mean)
    # of two ranks, each is the median peer of the other: what one does more is not common
    common, excess = np.minimum(mean, usual), np.clip(mean - usual, 0, None)
    open_work = np.add.reduceat(work[:, ~traced] * unknown, first, axis=-1)
    base = np.minimum(open_work, median_of_others(open_work)) * (np.add.reduceat(common, first, axis=-1) > 0)[:, None]
    extra = open_work - base
    least, sure = np.maximum(SHOWS * extra.mean(axis=1), 1), _beyond_chance(seen)
    # some of many cells exceed others by chance; the excess of a rank that is late now and then is in a cell that
    # stands out
    stands_out = excess >= STANDS_OUT * np.add.reduceat(excess, first, axis=-1)[:, place]
    excess = np.where((np.add.reduceat(sure, first, axis=-1) >= least)[:, place], sure, excess * stands_out)
    shows = np.add.reduceat(excess, first, axis=-1) >= least
    found = work.astype(float)
    found[:, ~traced] += (base[:, :, place] * _shares(common, first, place)[:, None]
                          + (extra * shows[:, None])[:, :, place] * _shares(excess, first, place)[:, None])
    found[:, ~traced] = np.where(unknown, (extra * ~shows[:, None])[:, :, place], found[:, ~traced])
    return found


def _beyond_chance(seen: Array) -> Floats:
    """Returns how much the mean step (or the median step, which a single very long step does not change) of each peer
    surely exceeds that of the median peer, in each cell."""
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
    """Returns each value divided by the sum of the values at its place."""
    total = np.add.reduceat(values, first, axis=-1)[:, place]
    return np.divide(values, total, out=np.zeros_like(values), where=total > 0)


@dataclass(frozen=True, kw_only=True)
class Excess:
    """Work of ranks that are peers. A cell is an activity at a place among the calls of a step; times in ns."""

    ranks: Integers
    """Indices of the peers."""
    steps: Integers
    """Step numbers, ascending."""
    counts: Flags
    """True for steps that count. Fixing the others matters only for its effect on these."""
    labels: Integers
    """Activity number of each cell."""
    work: Array
    """Work in ns; shape (ranks, steps, cells)."""
    position: Integers
    """Place of each cell among the calls of a step."""
    recorded: Array
    """`work` before that of steps without a timeline was divided among activities."""
    piece: Integers
    """Indices of the job's pieces of work that the cells are summed from."""
    place: Integers
    """Flat index in `recorded` of each of these pieces."""
    kinds: Sequence[str]
    """Kinds of activities, with `WHOLE` at the end."""
    kind_of: Integers
    """Index in `kinds` of each cell's kind."""
    more: Excess | None = None
    """The same over more steps, which show who is late, but not what that costs; None if there are no more."""

    @cached_property
    def mean(self) -> Any:
        """Mean work per counted step; shape (ranks, cells)."""
        return self.work[:, self.counts].mean(axis=1)

    @cached_property
    def usual(self) -> Any:
        """The mean work of the median of the other peers; shape (ranks, cells)."""
        return median_of_others(self.mean)

    @cached_property
    def totals(self) -> Array:
        """Work by kind; shape (ranks, counted steps, kinds)."""
        work = self.work[:, self.counts]
        each = [work[:, :, self.kind_of == kind].sum(axis=2) for kind in range(len(self.kinds) - 1)]
        return np.stack([*each, work.sum(axis=2)], axis=2)

    @cached_property
    def beyond(self) -> Any:
        """Work by kind beyond that of the median peer in the same step; shape as `totals`."""
        return self.totals - median_of_others(self.totals)

    @cached_property
    def to_fix(self) -> Array:
        """How much less of each kind a rank has to do in each step to work as its peers do; shape as `totals`.

        Its longest step is compared with the longest steps of its peers, its second longest with their second longest,
        and so on. So it keeps its own jitter, and a rank that is late once in a while is relieved only in that step.
        """
        order = np.argsort(self.totals, axis=1, kind="stable")
        by_length = np.take_along_axis(self.totals, order, axis=1)
        found = np.empty_like(self.totals)
        np.put_along_axis(found, order, by_length - median_of_others(by_length), axis=1)
        return found


def excess_of(job: Job, peers: Integers, counted: Sequence[int], known: Sequence[Activity],
              traced: Sequence[int]) -> Excess:
    """Compares the work of peers.

    Args:
        job: What ranks did.
        peers: Indices of ranks, ascending.
        counted: Steps that count.
        known: Activities by number.
        traced: Those of the steps that have a timeline.
    """
    pieces, events, steps = job.pieces, job.graph.events, np.unique(job.steps[:, 1])
    chosen = np.flatnonzero(np.isin(events.rank[pieces.event], peers) & (job.step[pieces.event] >= 0))
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
    """What waiting for the latest rank of each step costs, if that is a different rank from step to step."""

    ranks: list[int]
    """Ranks that are the latest in some step."""
    num_steps: int
    late_ns: float
    """How much longer than its peers the latest rank of a step works; median over steps."""
    step_ns: float

    @property
    def share(self) -> float:
        """`late_ns` as a fraction of a step."""
        return self.late_ns / self.step_ns if self.step_ns else 0.0


def shifting_lateness(groups: Sequence[Excess], ranks: Sequence[int], step_ns: float) -> ShiftingLateness | None:
    """Looks for a late rank that changes from step to step, in the largest set of peers.

    Args:
        groups: Sets of peers, with the excess of each rank.
        ranks: Numbers of the job's ranks.
        step_ns: Mean step.

    Returns:
        None if nobody is late, one rank is the latest too often, or there are fewer than `FEWEST` steps.
    """
    largest = max(groups, key=lambda one: len(one.ranks), default=None)
    if largest is None or int(largest.counts.sum()) < FEWEST:
        return None
    beyond = largest.beyond[:, :, -1]
    often = np.bincount(beyond.argmax(axis=0), minlength=len(beyond)) / beyond.shape[1]
    latest = np.flatnonzero(often > 0)
    if latest[-1] >= len(largest.ranks):
        return None  # a rank that is not replayed is the latest
    found = ShiftingLateness(
        ranks=[int(ranks[rank]) for rank in largest.ranks[latest]], num_steps=beyond.shape[1],
        late_ns=float(np.median(beyond.max(axis=0))), step_ns=step_ns)
    too_often = max(MOST_OFTEN, 1 / len(beyond) + ABOVE_SHARE)
    return found if often.max() <= too_often and found.share >= MATERIAL else None
