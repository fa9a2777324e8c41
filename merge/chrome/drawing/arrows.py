"""Arrows from the rank that came last into a collective to those that waited long enough for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from distprof.arrays import Integers
from distprof.merge.clock.model import Clock

SHORTEST_NS, LONG_NS, SHARE = 10_000, 100_000, 0.01
"""Waits that get an arrow: longer than the first, and as long as the second or as this share of their step."""


def arrows_between(shown: pl.DataFrame, clock: Clock, steps: Mapping[int, Mapping[int, int]], origin_ns: int,
                   first_number: int) -> pl.DataFrame:
    """Both ends of all arrows between rows.

    Args:
        shown: Rows that are drawn, whole collectives, as `shown_rows` gives them.
        clock: Of the run.
        steps: Rank -> step -> how long it took, in ns.
        origin_ns: No arrow lies before it.
        first_number: Of the arrows.

    Returns:
        A row an end: the `rank` and `row` that it belongs to, `number` (the same at both ends of an arrow, in the order
        of the rows that wait), `at_ns` on the common clock, and `is_start`.
    """
    places = np.arange(len(shown))
    sources = _last_to_come(shown)
    ranks, arrivals, left, come = (column.to_numpy() for column in shown.select(
        "rank", "arrival_ns", "left_ns", pl.coalesce("come_ns", "arrival_ns")).get_columns())
    waits = come - arrivals
    has = (sources >= 0) & ~shown["is_unsure"].to_numpy() & (ranks != ranks[sources]) & (waits > SHORTEST_NS)
    targets = places[has]
    enough = np.maximum(_worth_it(shown[targets], steps), _unsure(ranks[targets], ranks[sources[targets]], clock))
    targets = targets[waits[targets] >= enough]
    late = sources[targets]
    # a viewer finds the slices by time: both ends have to lie in one, and the arrow must not run back
    starts = np.maximum(arrivals[late], come[targets]) + 1
    ends = starts + 1
    fits = (ends < left[targets]) & (starts < left[late]) & (starts >= origin_ns)
    return _numbered(shown, targets[fits], late[fits], starts[fits], first_number)


def _last_to_come(shown: pl.DataFrame) -> Any:
    """int64 a row: the place of the rank that came last into its collective, -1 where that is not drawn."""
    is_last = ~shown["is_received"] & (shown["rank"] == shown["late_rank"]).fill_null(value=False)
    collectives = shown["collective"].to_numpy()
    collectives = collectives - collectives.min(initial=np.iinfo(np.int64).max)
    found = np.full(collectives.max(initial=-1) + 1, -1)
    places = np.flatnonzero(is_last.to_numpy())
    found[collectives[places]] = places
    return found[collectives]


def _worth_it(waiting: pl.DataFrame, steps: Mapping[int, Mapping[int, int]]) -> Integers:
    """int64 a row: waits of so many ns are shown."""
    keys = waiting.select("rank", "step").unique()
    limits = [LONG_NS if (took := steps[rank].get(step)) is None else min(LONG_NS, int(np.ceil(SHARE * took)))
              for rank, step in keys.iter_rows()]
    known = keys.with_columns(limit=pl.Series(limits, dtype=pl.Int64))
    return waiting.join(known, on=("rank", "step"), how="left", nulls_equal=True,
                        maintain_order="left")["limit"].to_numpy()


def _unsure(ranks: Integers, others: Integers, clock: Clock) -> Integers:
    """int64 a row: waits have to be so long, for all that is known of the clocks of the two."""
    pairs, which = np.unique(np.stack([np.minimum(ranks, others), np.maximum(ranks, others)]), axis=1,
                             return_inverse=True)
    limits = [clock.pair_uncertainty_ns(pair) for pair in pairs.T.tolist()]
    return np.array([np.iinfo(np.int64).max if limit is None else limit + 1 for limit in limits],
                    np.int64)[which.reshape(-1)]


def _numbered(shown: pl.DataFrame, targets: Integers, late: Integers, starts: Integers,
              first_number: int) -> pl.DataFrame:
    order = np.argsort(shown["row"].to_numpy()[targets])
    at = np.append(late[order], targets[order])
    number = len(targets)
    return pl.DataFrame({
        "rank": shown["rank"].to_numpy()[at], "row": shown["row"].to_numpy()[at],
        "number": first_number + np.tile(np.arange(number), 2), "at_ns": np.append(starts[order], starts[order] + 1),
        "is_start": np.repeat((True, False), number)})
