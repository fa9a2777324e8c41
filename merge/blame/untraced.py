"""Activities in steps without a timeline, as far as the steps with one show them."""

from __future__ import annotations

from typing import Any

import numpy as np

from distprof.merge.blame.others import median_of_others

SHOWS = 0.3
"""Part of what a rank does beyond its peers in steps without a timeline that has to show in those with one."""


def divided(work: Any, traced: Any, unknown: Any, position: Any) -> Any:
    """Divides unknown work among activities.

    At a place among the calls of a step, the part that the median peer does too is divided as in the steps with a
    timeline, and the rest by what exceeds the peers there. Where nothing much does, the rest stays unknown: it was
    something that no timeline shows.

    Args:
        work: Of peers; shape (ranks, steps, cells).
        traced: Which steps have a timeline.
        unknown: Which cells are of unknown activities.
        position: Place among the calls, of each cell.

    Returns:
        Work of the same shape, and the same sum at each place.
    """
    num_places = int(position.max(initial=-1)) + 1
    at_place = (position[:, None] == np.arange(num_places)).astype(float)
    seen = work[:, traced].mean(axis=1) * ~unknown
    usual = median_of_others(seen)
    shares, excess = _shares(usual, at_place, position), np.clip(seen - usual, 0, None)
    open_work = (work[:, ~traced] * unknown) @ at_place
    base = np.minimum(open_work, median_of_others(open_work)) * ((usual @ at_place) > 0)[:, None]
    extra = open_work - base
    shows = excess @ at_place >= np.maximum(SHOWS * extra.mean(axis=1), 1)
    found = work.astype(float)
    found[:, ~traced] += base[:, :, position] * shares[:, None] + (extra * shows[:, None])[:, :, position] * _shares(
        excess, at_place, position)[:, None]
    left = (extra * ~shows[:, None])[:, :, position]
    found[:, ~traced] = np.where(unknown, left, found[:, ~traced])
    return found


def _shares(values: Any, at_place: Any, position: Any) -> Any:
    """Each value over the sum of those at its place."""
    total = (values @ at_place)[:, position]
    return np.divide(values, total, out=np.zeros_like(values), where=total > 0)
