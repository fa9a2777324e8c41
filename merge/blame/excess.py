"""Excess: by how much a rank worked longer than its peers, step by step and activity by activity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from distprof.arrays import Array, Flags, Integers
from distprof.merge.activity.activities import Activity
from distprof.merge.blame.untraced import divided
from distprof.merge.chance import median_of_others
from distprof.merge.program.job import Job
from distprof.merge.program.parts import numbered

MOST_CELLS = 40_000_000
"""From more on, work is not kept by its place among the calls of a step."""
WHOLE = "whole"
"""All that a rank does itself."""


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
