"""Activities in steps without a timeline, as far as the steps with one show them."""

from __future__ import annotations

import numpy as np

from distprof.arrays import Array, Flags, Floats, Integers
from distprof.merge.chance import median_of_others

SHOWS = 0.3
"""Part of what a rank does beyond its peers in steps without a timeline that has to show in those with one."""


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
    seen = work[:, traced].mean(axis=1) * ~unknown
    usual = median_of_others(seen)
    # of two ranks, each is the median peer of the other: what one does more is none of what both do
    common, excess = np.minimum(seen, usual), np.clip(seen - usual, 0, None)
    open_work = np.add.reduceat(work[:, ~traced] * unknown, first, axis=-1)
    base = np.minimum(open_work, median_of_others(open_work)) * (np.add.reduceat(common, first, axis=-1) > 0)[:, None]
    extra = open_work - base
    shows = np.add.reduceat(excess, first, axis=-1) >= np.maximum(SHOWS * extra.mean(axis=1), 1)
    found = work.astype(float)
    found[:, ~traced] += (base[:, :, place] * _shares(common, first, place)[:, None]
                          + (extra * shows[:, None])[:, :, place] * _shares(excess, first, place)[:, None])
    found[:, ~traced] = np.where(unknown, (extra * ~shows[:, None])[:, :, place], found[:, ~traced])
    return found


def _shares(values: Floats, first: Integers, place: Integers) -> Floats:
    """Each value over the sum of those at its place."""
    total = np.add.reduceat(values, first, axis=-1)[:, place]
    return np.divide(values, total, out=np.zeros_like(values), where=total > 0)
